"""In-loop compression: a workload whose networks are compressed while they train.

load("compressed+digits")           # the workload `digits`, with the group `compression` in its space

The recipe is part of the configuration. A trial is trained and scored as the variant that it will become: with channels
removed from the start, weights pruned epoch by epoch, and int8 simulated in forward passes. The exported model is then
quantized for real.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from onefold.compression.encoding import tensor_payload
from onefold.compression.graph_methods import compress_graph
from onefold.compression.onnx_metadata import strip_metadata
from onefold.compression.registry import CompressionMethod, active_methods, recipe_of_settings, search_parameters
from onefold.training.trained_model import after_each
from onefold.vocabulary.errors import Rejected
from onefold.vocabulary.records import Config, Metrics, Value
from onefold.vocabulary.space import Space
from onefold.vocabulary.variants import Recipe
from onefold.vocabulary.workload import Data, Split, Workload

GROUP = "compression"
PREFIX = "compress_"  # of the parameters of the group: a network may have its own `channels`
ENCODED_BYTES = "encoded_bytes"  # the metric: estimated size of the packed weights
DEFLATE_LEVEL = 6
CALIBRATION_SAMPLES = 128


def recipe_of(config: Config) -> Recipe:
    """Return the recipe in a configuration."""
    settings = {name.removeprefix(PREFIX): value for name, value in config.items() if name.startswith(PREFIX)}
    return recipe_of_settings(settings)


class CompressedWorkload(Workload):
    """A workload whose trials are variants of another workload's networks."""

    def __init__(self, inner: Workload) -> None:
        self.inner = inner
        groups = inner.space.groups
        parameters = {f"{PREFIX}{name}": choice for name, choice in search_parameters().items()}
        self.space = inner.space if GROUP in groups else Space(**groups, **{GROUP: parameters})
        self.objective = inner.objective

    @property
    def name(self) -> str:
        return self.inner.name

    def build(self, config: Config) -> torch.nn.Module:
        network: torch.nn.Module = self.inner.build(_without_recipe(config))
        for method, value in _network_methods(config):
            method.compressor.build(network, value, self._inputs if method.stage == "architecture" else ())
        return network

    def data(self) -> Data:
        return self.inner.data()

    def check(self, config: Config) -> None:
        self.inner.check(_without_recipe(config))
        for method, _ in _network_methods(config):
            if reason := method.compressor.unsupported(self._default_network):
                raise Rejected(reason)

    def predictions(self, outputs: Any) -> Any:
        return self.inner.predictions(outputs)

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        return self.inner.loss(outputs, targets, _without_recipe(config))

    def optimizer(self, model: Any, config: Config) -> Any:
        return self.inner.optimizer(model, _without_recipe(config))

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:
        return self.inner.schedule(optimizer, _without_recipe(config), epochs)

    def batches(self, split: Split, config: Config, generator: Any = None) -> Iterable[Any]:
        return self.inner.batches(split, _without_recipe(config), generator)

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> Metrics:
        """Train one epoch under the constraints of the recipe."""
        callbacks = [method.compressor.begin_epoch(model, value) for method, value in _network_methods(config)]

        def after_step() -> None:
            for callback in callbacks:
                callback()

        with _simulation(model, config):
            return self.inner.train_epoch(model, after_each(batches, after_step), optimizer, _without_recipe(config))

    def metrics(self, outputs: Any, targets: Any, config: Config) -> Metrics:
        return self.inner.metrics(outputs, targets, _without_recipe(config))

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
        """Return the metrics of the final variant, and the estimated size of its packed weights."""
        variant = self.variant(model, config)
        with _simulation(variant, config):
            metrics = self.inner.evaluate(variant, batches, _without_recipe(config))
        return {**metrics, ENCODED_BYTES: float(_encoded_bytes(variant, config))}

    def serving_network(self, model: Any, config: Config) -> Any:
        """Return the variant that fully meets the recipe."""
        return self.variant(self.inner.serving_network(model, _without_recipe(config)), config)

    def finish_export(self, path: Path, config: Config, inputs: Callable[[int], list[Any]]) -> None:
        """Apply the graph-stage methods of the recipe to the exported model, in place."""
        self.inner.finish_export(path, _without_recipe(config), inputs)
        recipe = recipe_of(config)
        if all(method.stage != "graph" for method, _ in active_methods(recipe)):
            return
        samples = {f"input{index}": part.cpu().numpy() for index, part in enumerate(inputs(CALIBRATION_SAMPLES))}
        compressed, _ = compress_graph(path, recipe, samples)
        strip_metadata(compressed)
        compressed.replace(path)

    def variant(self, model: torch.nn.Module, config: Config) -> torch.nn.Module:
        """Return a copy of the network that fully meets its recipe; the network itself if it has nothing to meet."""
        methods = [pair for pair in _network_methods(config) if pair[0].stage == "weights"]
        if not methods:
            return model
        variant = copy.deepcopy(model)
        for method, value in methods:
            method.compressor.finalize(variant, value)
        return variant

    @cached_property
    def _default_network(self) -> torch.nn.Module:
        network: torch.nn.Module = self.inner.build(_without_recipe(self.space.default()))
        return network

    @cached_property
    def _inputs(self) -> list[torch.Tensor]:
        """Return two samples without targets, for tracing."""
        train = self.inner.data().train
        if isinstance(train, (tuple, list)):
            return [torch.as_tensor(np.asarray(part[:2])) for part in train[:-1]]
        samples = [train[index] for index in range(2)]
        count = len(samples[0]) - 1
        return [torch.stack([torch.as_tensor(sample[index]) for sample in samples]) for index in range(count)]

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "space": self.space, "objective": self.objective}


def _without_recipe(config: Config) -> Config:
    """Return the configuration of the inner workload."""
    return Config({name: value for name, value in config.items() if not name.startswith(PREFIX)})


def _network_methods(config: Config) -> list[tuple[CompressionMethod, Value]]:
    return [pair for pair in active_methods(recipe_of(config)) if pair[0].stage != "graph"]


def _simulation(model: torch.nn.Module, config: Config) -> ExitStack:
    """Return a context in which the network computes as the exported variant will."""
    with ExitStack() as stack:
        for method, _ in active_methods(recipe_of(config)):
            stack.enter_context(method.compressor.simulate(model))
        return stack.pop_all()


def _encoded_bytes(model: torch.nn.Module, config: Config) -> int:
    """Return the size of the weights in DEFLATE: an estimate, since the graph and zstd are left out."""
    methods = [method for method, _ in active_methods(recipe_of(config)) if method.stage == "graph"]
    state: Mapping[str, torch.Tensor] = model.state_dict()
    return sum(len(zlib.compress(tensor_payload(_stored(tensor, methods)), DEFLATE_LEVEL)) for tensor in state.values())


def _stored(tensor: torch.Tensor, methods: list[CompressionMethod]) -> NDArray[Any]:
    return methods[-1].compressor.stored_weight(tensor) if methods else tensor.cpu().numpy()
