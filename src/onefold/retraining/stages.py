"""A network as a sequence of stages, each of which continues from the tensor that the one before it returns.

The graph of the forward is cut wherever later layers need a single tensor: between the blocks of a residual network,
between attention and MLP of a transformer block. What is computed from the inputs without weights, such as a mask or
the batch size, is computed again by each stage that needs it. No annotations are needed. A module that cannot be
traced, such as one with data-dependent control flow, stays in one piece. A network that cannot be traced at all is one
stage: it can be trained in small batches, but neither partly frozen nor checkpointed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from onefold.retraining.forward_graph import (
    LARGE_BATCH,
    SMALL_BATCH,
    Inputs,
    drop_constants,
    resized,
    trace_forward,
)
from onefold.retraining.graph_nodes import computed_from_inputs, is_inplace, is_weight
from onefold.retraining.rng_state import RngState
from onefold.retraining.value_tracer import IS_TENSOR
from onefold.vocabulary.attention import without_fused_attention
from onefold.vocabulary.outputs import parts


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a network, which shares modules and weights with it."""

    name: str
    module: nn.Module
    layers: int  # modules that own weights, and weights used directly
    side_inputs: tuple[int, ...] = ()  # inputs of the network that it takes besides the previous stage's output

    def run(self, inputs: Inputs, *values: Any) -> Any:
        """Continue from the previous stage's output. `inputs` are those of the network, also for the first stage."""
        return self(*values, *(inputs[index] for index in self.side_inputs))

    def __call__(self, *values: Any) -> Any:
        """Run the stage. Bypasses GraphModule.__call__, which imports the compiler to format errors."""
        return self.module.forward(*values) if isinstance(self.module, GraphModule) else self.module(*values)

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """Return the distinct weights of the stage."""
        return list(self.module.parameters())


@dataclass(frozen=True, eq=False)
class StagedNetwork:
    """A network and its stages, in the order of the forward."""

    network: nn.Module
    stages: tuple[Stage, ...]

    @cached_property
    def layers(self) -> int:
        """Return the number of layers in all stages."""
        return sum(stage.layers for stage in self.stages)

    def frozen_stages(self, freeze_rate: float) -> int:
        """Return how many stages from the input are frozen: as many as hold at most this share of the layers.

        The last stage with weights is never frozen, not even at a rate of 1.
        """
        return min(bisect_right(self._cumulative_layers, freeze_rate * self.layers + 1e-9), self._last_trainable)

    @cached_property
    def _cumulative_layers(self) -> list[int]:
        return list(accumulate(stage.layers for stage in self.stages))

    @cached_property
    def _last_trainable(self) -> int:
        return max((index for index, stage in enumerate(self.stages) if stage.layers), default=0)

    def __call__(self, *inputs: Tensor) -> Any:
        """Run all stages."""
        values: Sequence[Any] = inputs
        for stage in self.stages:
            values = [stage.run(inputs, *values)]
        return values[0]


def split_into_stages(network: nn.Module, inputs: Inputs) -> StagedNetwork:
    """Split a network into stages. `inputs` are a few samples to run it with; its state is preserved."""
    attributes = set(vars(network))
    try:
        with preserved_state(network), without_fused_attention():
            staged = _split(network, inputs)
    except Exception:  # noqa: BLE001 - a traced graph may fail to run in any way
        staged = None
    finally:
        drop_constants(network, attributes)
    return staged or StagedNetwork(network, (Stage("network", network, _layer_count(network)),))


def _split(network: nn.Module, inputs: Inputs) -> StagedNetwork | None:
    graph = trace_forward(network, inputs)
    if graph is None:
        return None
    for sides in (computed_from_inputs(network, graph), set()):  # a random number must not be computed again
        staged = StagedNetwork(network, _stages(network, graph, sides))
        if staged.stages and _is_equivalent(network, staged, inputs):
            return staged
    return None


@dataclass(frozen=True)
class _Section:
    """A run of nodes between two cuts."""

    inputs: list[Node]  # placeholders, or the last node before the cut
    nodes: list[Node]
    output: Any  # a node, or a structure of nodes


def _stages(network: nn.Module, graph: Graph, sides: set[Node]) -> tuple[Stage, ...]:
    """Cut the graph wherever a single tensor is live, besides what is computed from the inputs alone."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    end = next(node for node in graph.nodes if node.op == "output")
    if not nodes:
        return ()
    position = {node: index for index, node in enumerate(nodes)}
    last_use = {node: max((position.get(user, len(nodes)) for user in node.users), default=-1) for node in graph.nodes}
    sections: list[_Section] = []
    inputs, first = placeholders, 0
    live = {node for node in placeholders if last_use[node] >= 0}
    for index, node in enumerate(nodes):
        live = {other for other in [*live, node] if last_use[other] > index}
        is_last = index == len(nodes) - 1
        is_overwritten = any(is_inplace(network, user) for user in node.users)  # could not be recomputed from
        is_boundary = live == {node} if node in sides else live - sides == {node}
        if is_last or (is_boundary and node.meta.get(IS_TENSOR) and not is_overwritten):
            sections.append(_Section(inputs, nodes[first : index + 1], end.args[0] if is_last else node))
            inputs, first = [node], index + 1
    merged = _merge_weightless(network, sections)
    return tuple(_stage(network, section, placeholders) for section in merged)


def _merge_weightless(network: nn.Module, sections: list[_Section]) -> list[_Section]:
    """Merge each section without weights into the one before: it has nothing to freeze."""
    merged: list[_Section] = []
    for section in sections:
        if merged and not _weighted_targets(network, section.nodes):
            before = merged[-1]
            merged[-1] = _Section(before.inputs, before.nodes + section.nodes, section.output)
        else:
            merged.append(section)
    return merged


def _weighted_targets(network: nn.Module, nodes: Sequence[Node]) -> list[str]:
    """Return the distinct targets of these nodes that have weights."""
    targets = []
    for node in nodes:
        is_module = node.op == "call_module" and any(True for _ in network.get_submodule(str(node.target)).parameters())
        if is_module or (node.op == "get_attr" and is_weight(network, str(node.target))):
            targets.append(str(node.target))
    return list(dict.fromkeys(targets))


def _stage(network: nn.Module, section: _Section, placeholders: list[Node]) -> Stage:
    needed = _needed_sides(section)
    sides = [node for node in placeholders if node in needed]
    graph = Graph()
    copies: dict[Node, Node] = {
        node: graph.create_node("placeholder", node.name, name=node.name) for node in [*section.inputs, *sides]
    }
    for node in [*(node for node in needed if node.op != "placeholder"), *section.nodes]:
        copies[node] = graph.node_copy(node, lambda original: copies[original])
    graph.output(map_arg(section.output, lambda original: copies[original]))
    targets = _weighted_targets(network, section.nodes)
    layers = sum(_layer_count(network.get_submodule(name)) if _is_module(network, name) else 1 for name in targets)
    return Stage(
        targets[0] if targets else "start",
        GraphModule(network, graph),
        layers,
        tuple(placeholders.index(node) for node in sides),
    )


def _needed_sides(section: _Section) -> list[Node]:
    """Return the nodes before a section that it computes again, in the order of the graph."""
    known, needed = {*section.inputs, *section.nodes}, set()
    outputs: list[Node] = []
    map_arg(section.output, outputs.append)
    open_nodes = [*outputs, *(part for node in section.nodes for part in node.all_input_nodes)]
    while open_nodes:
        node = open_nodes.pop()
        if node not in known and node not in needed:
            needed.add(node)
            open_nodes += node.all_input_nodes
    graph = section.nodes[0].graph
    return [node for node in graph.nodes if node in needed] if needed else []


def _is_module(network: nn.Module, name: str) -> bool:
    try:
        network.get_submodule(name)
    except AttributeError:
        return False
    return True


def _layer_count(module: nn.Module) -> int:
    """Return how many modules inside own weights."""
    return sum(1 for child in module.modules() if any(True for _ in child.parameters(recurse=False)))


def _is_equivalent(network: nn.Module, staged: StagedNetwork, inputs: Inputs) -> bool:
    """Return whether the stages compute what the network does, in training and in evaluation mode."""
    with torch.no_grad(), preserved_state(network):
        for training, size in ((False, LARGE_BATCH), (True, SMALL_BATCH)):
            network.train(training)
            torch.manual_seed(0)
            expected = network(*resized(inputs, size))
            torch.manual_seed(0)
            if not _is_equal(staged(*resized(inputs, size)), expected):
                return False
    return True


def _is_equal(result: Any, expected: Any) -> bool:
    """Return whether two outputs have the same structure and the same values, up to rounding."""
    if isinstance(expected, Tensor):
        return isinstance(result, Tensor) and _is_close(result, expected)
    if type(result) is not type(expected):
        return False
    inside = parts(expected)
    if inside is None:
        return bool(result == expected)
    others = parts(result) or []
    return [key for key, _ in others] == [key for key, _ in inside] and all(
        _is_equal(value, other) for (_, value), (_, other) in zip(others, inside)
    )


def _is_close(result: Tensor, expected: Tensor) -> bool:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    return (
        torch.allclose(result, expected, equal_nan=True)
        if expected.is_floating_point()
        else torch.equal(result, expected)
    )


class preserved_state:  # noqa: N801 - used as `with preserved_state(network):`
    """Restore the buffers, the training modes and the RNG state on exit."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __enter__(self) -> None:
        self.buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        self.modes = {module: module.training for module in self.network.modules()}
        self.rng_state = RngState.capture()

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for name, buffer in self.network.named_buffers():
                buffer.copy_(self.buffers[name])
        for module, mode in self.modes.items():
            module.training = mode
        self.rng_state.restore()
