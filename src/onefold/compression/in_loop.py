"""A workload whose networks are compressed while they train: one loop instead of two steps.

load("compressed+digits")           # the workload `digits`, with the group `compression` in its space

The recipe is part of the configuration, and a trial is scored as the variant that it will be: narrower from the start,
its smallest weights zero, its numbers rounded as integers will be. What is handed over is quantised for real.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onefold.compression.channel_pruning import ChannelPruner
from onefold.compression.encoding import side_by_side_or_sparse
from onefold.compression.fake_quantization import fake_quantization, rounded
from onefold.compression.magnitude_pruning import PruningMasks
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.quantization import quantize_onnx
from onefold.training.trained_model import after_each
from onefold.vocabulary.errors import Rejected
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.space import Choice, Space
from onefold.vocabulary.variants import Recipe
from onefold.vocabulary.workload import Data, Split, Workload

GROUP = "compression"
PREFIX = "compress_"  # of its parameters: a network may have `channels` of its own
PARAMETERS = {
    f"{PREFIX}sparsity": Choice(0.0, 0.5, 0.7, 0.8, 0.9, default=0.0),
    f"{PREFIX}channels": Choice(0.0, 0.25, 0.5, default=0.0),
    f"{PREFIX}precision": Choice("fp32", "int8", default="fp32"),
}
RAMP = 3  # epochs in which the zeros become as many as they should be
CALIBRATION = 128  # samples for quantization
ENCODED = "encoded_bytes"  # the metric: how many bytes the weights take, packed


def recipe_of(config: Config) -> Recipe:
    """The recipe in a configuration."""
    chosen = {name.removeprefix(PREFIX): value for name, value in config.items() if name.startswith(PREFIX)}
    return Recipe(**chosen)  # type: ignore[arg-type]


class CompressedWorkload(Workload):
    """Another workload, whose trials are variants."""

    def __init__(self, inner: Workload) -> None:
        self.inner = inner
        groups = inner.space.groups
        self.space = inner.space if GROUP in groups else Space(**groups, **{GROUP: dict(PARAMETERS)})
        self.objective = inner.objective

    @property
    def name(self) -> str:
        return self.inner.name

    def build(self, config: Config) -> torch.nn.Module:
        network: torch.nn.Module = self.inner.build(_plain(config))
        share = recipe_of(config).channels
        if share:
            ChannelPruner(network, self._inputs, share).step()
        return network

    def data(self) -> Data:
        return self.inner.data()

    def check(self, config: Config) -> None:
        self.inner.check(_plain(config))
        if recipe_of(config).channels and self._is_recurrent:
            raise Rejected("channels cannot be taken out of a network with recurrent layers")

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        return self.inner.loss(outputs, targets, _plain(config))

    def optimizer(self, model: Any, config: Config) -> Any:
        return self.inner.optimizer(model, _plain(config))

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:
        return self.inner.schedule(optimizer, _plain(config), epochs)

    def batches(self, split: Split, config: Config, generator: Any = None) -> Iterable[Any]:
        return self.inner.batches(split, _plain(config), generator)

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> Metrics:
        """One pass, with more zeros than before, and with numbers rounded where they will be integers."""
        recipe = recipe_of(config)
        after: Callable[[], None] = _nothing
        if recipe.sparsity:
            masks = PruningMasks(model)
            masks.keep_zeros()
            masks.prune(min(recipe.sparsity, masks.sparsity + recipe.sparsity / RAMP))
            after = masks.apply
        with _precise(model, recipe):
            return self.inner.train_epoch(model, after_each(batches, after), optimizer, _plain(config))

    def metrics(self, outputs: Any, targets: Any, config: Config) -> Metrics:
        return self.inner.metrics(outputs, targets, _plain(config))

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
        """The metrics of the variant that the model will be, and how many bytes its weights take, packed."""
        recipe, variant = recipe_of(config), self.variant(model, config)
        with _precise(variant, recipe):
            found = self.inner.evaluate(variant, batches, _plain(config))
        return {**found, ENCODED: float(_encoded_bytes(variant, recipe))}

    def serving_network(self, model: Any, config: Config) -> Any:
        """Return the variant: a copy with all the zeros that the recipe asks for."""
        return self.variant(self.inner.serving_network(model, _plain(config)), config)

    def finish_export(self, path: Path, config: Config, inputs: Callable[[int], list[Any]]) -> None:
        """Quantize the exported model to the precision of the recipe."""
        self.inner.finish_export(path, _plain(config), inputs)
        precision = recipe_of(config).precision
        if precision == "fp32":
            return
        samples = {f"input{index}": part.cpu().numpy() for index, part in enumerate(inputs(CALIBRATION))}
        quantized = path.with_suffix(".new")
        quantize_onnx(path, quantized, precision, samples)
        strip_metadata(quantized)
        quantized.replace(path)

    def variant(self, model: torch.nn.Module, config: Config) -> torch.nn.Module:
        """A copy with all the zeros that its recipe asks for."""
        sparsity = recipe_of(config).sparsity
        if not sparsity:
            return model
        variant = copy.deepcopy(model)
        PruningMasks(variant).prune(sparsity)
        return variant

    @cached_property
    def _is_recurrent(self) -> bool:
        network = self.inner.build(_plain(self.space.default()))
        return any(isinstance(module, torch.nn.RNNBase) for module in network.modules())

    @cached_property
    def _inputs(self) -> list[torch.Tensor]:
        """Two samples without their targets, to find out which channels belong together."""
        train = self.inner.data().train
        if isinstance(train, (tuple, list)):
            return [torch.as_tensor(np.asarray(part[:2])) for part in train[:-1]]
        samples = [train[place] for place in range(2)]
        return [torch.stack([torch.as_tensor(sample[at]) for sample in samples]) for at in range(len(samples[0]) - 1)]

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "space": self.space, "objective": self.objective}


def _plain(config: Config) -> Config:
    """The configuration as the workload itself knows it."""
    return Config({name: value for name, value in config.items() if not name.startswith(PREFIX)})


def _precise(model: torch.nn.Module, recipe: Recipe) -> AbstractContextManager[None]:
    return fake_quantization(model) if recipe.precision == "int8" else nullcontext()


def _encoded_bytes(model: torch.nn.Module, recipe: Recipe) -> int:
    total = 0
    for weight in model.state_dict().values():
        if recipe.precision == "int8" and weight.ndim > 1 and weight.is_floating_point():
            values = rounded(weight).numpy().astype(np.int8)
        else:
            values = weight.cpu().numpy()
        total += len(zlib.compress(side_by_side_or_sparse(values), 6))
    return total


def _nothing() -> None:
    """There is nothing to do after a step."""
