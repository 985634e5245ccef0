"""The contract of `Compressor`. Subclass `CompressorContract` with a `method` fixture to test an implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onefold.compression.compressor import STAGES, StepCallback
from onefold.compression.encoding import pack, tensor_payload
from onefold.compression.registry import CompressionMethod, active_methods, check_recipe, method_named
from onefold.serving import deploy
from onefold.serving.export import export
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Value, from_json, to_json
from onefold.vocabulary.serving import ServingPoint
from onefold.vocabulary.variants import Recipe

SHARE = 0.5  # the setting under test of methods that take a share


def small_network() -> nn.Module:
    """Return a network with convolution, normalization, pooling and Linear layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 9, 64), nn.ReLU(), nn.Linear(64, 10),
    ).eval()  # fmt: skip


def images(count: int = 64) -> torch.Tensor:
    """Return inputs of the small network."""
    return torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1))


@dataclass
class FewSteps:
    """Fine-tuning of a few optimizer steps per epoch on random labels."""

    epochs: int = 3

    @property
    def inputs(self) -> list[torch.Tensor]:
        """Return samples without targets."""
        return [images()]

    def run(
        self,
        network: nn.Module,
        *,
        learning_rate_factor: float,
        before_epoch: Callable[[int], None] = lambda epoch: None,  # noqa: ARG005
        after_step: StepCallback = lambda: None,
    ) -> None:
        """Train in place."""
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05 * learning_rate_factor)
        network.train()
        for epoch in range(self.epochs):
            before_epoch(epoch)
            for _ in range(2):
                optimizer.zero_grad()
                loss: Any = nn.functional.cross_entropy(network(images()), torch.arange(64) % 10)
                loss.backward()
                optimizer.step()
                after_step()
        network.eval()


class CompressorContract:
    """The promises of `Compressor`, one test each."""

    @pytest.fixture
    def method(self) -> CompressionMethod:
        """Return the registered method under test."""
        raise NotImplementedError("override the `method` fixture")

    @pytest.fixture
    def value(self, method: CompressionMethod) -> Value:
        """Return a setting that turns the method on."""
        return SHARE if method.takes_share else method.name

    def test_the_method_is_registered_and_a_recipe_turns_it_on(self, method: CompressionMethod, value: Value) -> None:
        assert method_named(method.name) == method
        assert method.stage in STAGES
        assert method.summary
        recipe = Recipe.of({method.parameter: value})
        check_recipe(recipe)
        assert active_methods(recipe) == [(method, value)]
        assert from_json(Recipe, to_json(recipe)) == recipe
        assert str(recipe) != str(Recipe())

    def test_the_neutral_setting_leaves_the_model_unchanged(self, method: CompressionMethod) -> None:
        assert active_methods(Recipe.of({method.parameter: method.neutral})) == []

    def test_invalid_settings_are_rejected(self, method: CompressionMethod) -> None:
        for wrong in (-0.1, 1.0, "half") if method.takes_share else ("no such method", 0.5):
            with pytest.raises(InputError, match=method.parameter):
                check_recipe(Recipe.of({method.parameter: wrong}))

    def test_outputs_keep_their_shape_and_the_network_gets_smaller(
        self, method: CompressionMethod, value: Value, tmp_path: Path
    ) -> None:
        plain, compressed = self._export(small_network(), tmp_path / "plain"), self._compress(method, value, tmp_path)
        assert self._outputs(compressed).shape == self._outputs(plain).shape
        assert np.isfinite(self._outputs(compressed)).all()
        assert len(pack(compressed.read_bytes())) < 0.8 * len(pack(plain.read_bytes()))

    def test_compression_is_deterministic(self, method: CompressionMethod, value: Value, tmp_path: Path) -> None:
        first, second = (self._compress(method, value, tmp_path / name) for name in ("first", "second"))
        assert np.array_equal(self._outputs(first), self._outputs(second))

    def test_compressing_a_graph_leaves_its_source_unchanged(self, method: CompressionMethod, tmp_path: Path) -> None:
        if method.stage != "graph":
            pytest.skip("changes networks, not graphs")
        source = self._export(small_network(), tmp_path / "plain")
        before = source.read_bytes()
        uncompressed = method.compressor.compress_onnx(source, tmp_path / "target.onnx", {"input0": images().numpy()})
        assert all(isinstance(name, str) for name in uncompressed)
        assert source.read_bytes() == before

    def test_further_training_does_not_undo_the_compression(self, method: CompressionMethod, value: Value) -> None:
        network, compressor = small_network(), method.compressor
        compressor.compress(network, value, FewSteps())
        before = _stored_bytes(network)
        FewSteps().run(network, learning_rate_factor=1.0, after_step=compressor.preserve(network, value))
        assert _stored_bytes(network) < 1.05 * before

    def test_a_simulation_lets_gradients_pass_and_leaves_no_trace(self, method: CompressionMethod) -> None:
        network = small_network()
        parameters, keys = [id(parameter) for parameter in network.parameters()], list(network.state_dict())
        with method.compressor.simulate(network):
            outputs = network(images())
            outputs.square().mean().backward()
        assert outputs.shape == (64, 10)
        assert all(parameter.grad is not None for parameter in network.parameters())
        assert [id(parameter) for parameter in network.parameters()] == parameters
        assert list(network.state_dict()) == keys

    def _compress(self, method: CompressionMethod, value: Value, folder: Path) -> Path:
        network = small_network()
        method.compressor.compress(network, value, FewSteps())
        path = self._export(network, folder / "compressed")
        if method.stage == "graph":
            source, path = path, path.with_name("quantized.onnx")
            method.compressor.compress_onnx(source, path, {"input0": images().numpy()})
        return path

    def _export(self, network: nn.Module, folder: Path) -> Path:
        return export(network, [images()], folder / "model.onnx")

    def _outputs(self, model: Path) -> Any:
        return np.asarray(deploy.ServedModel(model, ServingPoint(64))(images().numpy()))


def _stored_bytes(network: nn.Module) -> int:
    """Return the size of all tensors as stored; bitmaps make zeros nearly free."""
    return sum(len(tensor_payload(tensor.numpy())) for tensor in network.state_dict().values())
