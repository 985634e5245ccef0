"""The signature of an architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onefold.serving.export import export
from onefold.serving.signature import architecture, read
from onefold.vocabulary.errors import ModelError


class Residual(nn.Module):
    """A skip connection, with or without `work` on it."""

    def __init__(self, *, work: bool) -> None:
        super().__init__()
        self.straight, self.around = nn.Linear(4, 4), nn.Linear(4, 4) if work else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.straight(x)) + self.around(x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.one(x) * self.other(y)


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(4, 8, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def dense(width: int = 8, activation: type[nn.Module] = nn.ReLU, inputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), activation(), nn.Linear(width, 3))


def signature(path: Path) -> str:
    return architecture(path).signature


@pytest.fixture
def made(tmp_path: Path):  # type: ignore[no-untyped-def]
    def make(network: nn.Module, *shapes: tuple[int, ...]) -> Path:
        number = len(list(tmp_path.glob("*.onnx")))
        return export(network, [torch.randn(shape) for shape in shapes or ((8, 4),)], tmp_path / f"{number}.onnx")

    return make


def test_signature_ignores_weights(made) -> None:
    assert signature(made(dense())) == signature(made(dense()))
    assert len(signature(made(dense()))) == 32


def test_signature_ignores_samples(made) -> None:
    assert signature(made(dense(), (8, 4))) == signature(made(dense(), (2, 4)))


def test_signature_ignores_names(made) -> None:
    path = made(dense())
    model = onnx.load(str(path))
    before = signature(path)
    for node in model.graph.node:
        node.name = f"renamed-{node.name}"
        node.input[:] = [f"x-{name}" for name in node.input]
        node.output[:] = [f"x-{name}" for name in node.output]
    for each in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        each.name = f"x-{each.name}"
    model.producer_name = "somebody else"
    onnx.save(model, str(path))
    assert signature(path) == before


def test_signature_covers_what_changes_the_cost(made) -> None:
    networks = {
        "plain": (dense(), (8, 4)),
        "wider": (dense(width=9), (8, 4)),
        "another activation": (dense(activation=nn.Tanh), (8, 4)),
        "another input": (dense(inputs=5), (8, 5)),
        "deeper": (nn.Sequential(dense(), nn.ReLU()), (8, 4)),
        "small pictures": (nn.Conv2d(1, 2, 3), (8, 1, 8, 8)),
        "larger pictures": (nn.Conv2d(1, 2, 3), (8, 1, 9, 9)),
        "padded": (nn.Conv2d(1, 2, 3, padding=1), (8, 1, 8, 8)),
        "strided": (nn.Conv2d(1, 2, 3, stride=2), (8, 1, 8, 8)),
    }
    result = {name: signature(made(network, shape)) for name, (network, shape) in networks.items()}
    assert len(set(result.values())) == len(result)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_signature_of_recurrent_networks(kind: str, made) -> None:
    """Their attributes are lists of strings."""
    one, other = made(Recurrent(kind), (8, 5, 4)), made(Recurrent(kind), (8, 5, 4))
    assert signature(one) == signature(other)
    assert signature(one) != signature(made(Recurrent(kind), (8, 6, 4)))


def test_parameters_are_counted(made) -> None:
    network = dense()
    assert architecture(made(network)).parameters == sum(weights.numel() for weights in network.parameters())


class TestBranches:
    def test_chain_has_no_branches(self, made) -> None:
        assert not architecture(made(dense())).branches
        convolutional = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2))
        assert not architecture(made(convolutional, (8, 1, 8, 8))).branches

    def test_recurrence_has_no_branches(self, made) -> None:
        assert not architecture(made(Recurrent("LSTM"), (8, 5, 4))).branches

    def test_empty_skip_connection_is_no_branch(self, made) -> None:
        assert not architecture(made(Residual(work=False))).branches

    def test_skip_connection_with_work_is_a_branch(self, made) -> None:
        assert architecture(made(Residual(work=True))).branches

    def test_two_inputs_are_branches(self, made) -> None:
        assert architecture(made(TwoInputs(), (8, 4), (8, 4))).branches


class TestRead:
    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"there is no model .*; give the path of an ONNX file"):
            read(tmp_path / "nothing.onnx")

    @pytest.mark.parametrize("content", [b"", b"this is no model", bytes(range(256))])
    def test_invalid_file(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(ModelError, match="is not a valid ONNX model") as caught:
            signature(tmp_path / "bad.onnx")
        assert "\n" not in str(caught.value)

    def test_large_weights_are_not_hashed(self, made) -> None:
        """Small integer constants are part of the signature; large ones are not."""
        path = made(dense())
        model = onnx.load(str(path))
        table = onnx.numpy_helper.from_array(np.arange(1000), "table")
        model.graph.initializer.append(table)
        onnx.save(model, str(path))
        before = signature(path)
        model.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(np.arange(1000)[::-1].copy(), "table"))
        onnx.save(model, str(path))
        assert signature(path) == before
