"""A network as a sequence of stages, each of which takes one tensor and returns one.

The forward is traced with `torch.fx` and cut wherever later layers need a single tensor: between the blocks of a
residual network, between attention and MLP of a transformer block. No annotations are needed. A module that cannot be
traced, such as one with data-dependent control flow, stays in one piece. A network that cannot be traced at all is one
stage: it can be trained in small batches, but neither partly frozen nor checkpointed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node, Tracer

from onefold.retraining.rng_state import RngState

Inputs = Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a network, which shares modules and weights with it."""

    name: str
    module: nn.Module
    layers: int  # modules that own weights, and weights used directly

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
        values: Any = inputs
        for index, stage in enumerate(self.stages):
            values = stage(*values) if index == 0 else stage(values)
        return values


def split_into_stages(network: nn.Module, inputs: Inputs) -> StagedNetwork:
    """Split a network into stages. `inputs` are a few samples to run it with; its state is preserved."""
    attributes = set(vars(network))
    try:
        with preserved_state(network):
            graph = _trace(network)
            if graph is not None:
                staged = StagedNetwork(network, _stages(network, graph, _tensor_nodes(network, graph, inputs)))
                if staged.stages and _is_equivalent(network, staged, inputs):
                    return staged
    except Exception:  # noqa: BLE001 - a traced graph may fail to run in any way, for instance without a default
        pass
    finally:
        _drop_constants(network, attributes)
    return StagedNetwork(network, (Stage("network", network, _layer_count(network)),))


class _Tracer(Tracer):
    """Trace into every module except those that are known to be untraceable."""

    def __init__(self, untraceable: set[str]) -> None:
        super().__init__()
        self.untraceable = untraceable
        self.call_stack: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            module_qualified_name in self.untraceable
            or not list(m.children())
            or super().is_leaf_module(m, module_qualified_name)
        )

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.call_stack.append(self.path_of_module(m))
        value = super().call_module(m, forward, args, kwargs)
        self.call_stack.pop()
        return value


def _trace(network: nn.Module) -> Graph | None:
    """Return the graph of the forward with untraceable modules as leaves; None if the network itself is untraceable."""
    untraceable: set[str] = set()
    attributes = set(vars(network))
    while True:
        graphs = []
        for training in (False, True):
            tracer = _Tracer(untraceable)
            _drop_constants(network, attributes)
            try:
                graphs.append(tracer.trace(network.train(training)))
            except Exception:  # noqa: BLE001 - a forward may raise anything when it meets a proxy
                culprit = tracer.call_stack[-1] if tracer.call_stack else ""
                break
        else:
            mode_dependent = _mode_dependent_module(*graphs)
            if mode_dependent is None:
                traced = GraphModule(network, graphs[1])
                traced.graph.eliminate_dead_code()  # an unused half of a pair would count as needed
                return traced.graph
            culprit = mode_dependent
        if not culprit or culprit in untraceable:
            return None
        untraceable.add(culprit)


def _drop_constants(network: nn.Module, attributes: set[str]) -> None:
    """Remove the attributes that torch.fx adds to the network for constants in its forward."""
    for name in set(vars(network)) - attributes:
        delattr(network, name)


def _mode_dependent_module(serving: Graph, training: Graph) -> str | None:
    """Return the module whose forward reads `training`, as functional dropout does: a graph would fix its value."""
    for first, other in zip_longest(training.nodes, serving.nodes):
        if first is None or other is None or (first.op, first.target, str(first.args), str(first.kwargs)) != (
            other.op, other.target, str(other.args), str(other.kwargs)
        ):  # fmt: skip
            stack = [*(first or other).meta.get("nn_module_stack", ())]
            return stack[-1] if stack else ""
    return None


class _TensorRecorder(Interpreter):
    """Run a graph and record which of its nodes produce tensors."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.tensors: set[str] = set()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.tensors.add(n.name)
        return value


def _tensor_nodes(network: nn.Module, graph: Graph, inputs: Inputs) -> set[str]:
    recorder = _TensorRecorder(GraphModule(network, graph))
    with torch.no_grad(), preserved_state(network):
        network.eval()
        recorder.run(*inputs)
    return recorder.tensors


@dataclass(frozen=True)
class _Section:
    """A run of nodes between two cuts."""

    inputs: list[Node]
    nodes: list[Node]
    output: Node


def _stages(network: nn.Module, graph: Graph, tensors: set[str]) -> tuple[Stage, ...]:
    """Cut the graph wherever a single tensor is live."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    end = next(node for node in graph.nodes if node.op == "output")
    if not isinstance(end.args[0], Node) or not nodes:
        return ()
    position = {node: index for index, node in enumerate(nodes)}
    last_use = {node: max((position.get(user, len(nodes)) for user in node.users), default=-1) for node in graph.nodes}
    sections: list[_Section] = []
    inputs, first = placeholders, 0
    for index, node in enumerate(nodes):
        live = [other for other in [*placeholders, *nodes[: index + 1]] if last_use[other] > index]
        is_last = index == len(nodes) - 1
        is_overwritten = any(_is_inplace(network, user) for user in node.users)  # could not be recomputed from
        if is_last or (live == [node] and node.name in tensors and not is_overwritten):
            sections.append(_Section(inputs, nodes[first : index + 1], end.args[0] if is_last else node))
            inputs, first = [node], index + 1
    return tuple(_stage(network, section) for section in _merge_weightless(network, sections))


def _is_inplace(network: nn.Module, node: Node) -> bool:
    """Return whether an operation overwrites its input."""
    if node.op == "call_module":
        return bool(getattr(network.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return bool(node.kwargs.get("inplace")) or name in ("iadd", "isub", "imul") or name.endswith("_")


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
        if is_module or (node.op == "get_attr" and _is_weight(network, str(node.target))):
            targets.append(str(node.target))
    return list(dict.fromkeys(targets))


def _stage(network: nn.Module, section: _Section) -> Stage:
    graph = Graph()
    defaults = {node: node.args if node.op == "placeholder" else () for node in section.inputs}
    copies: dict[Node, Node] = {
        node: graph.create_node("placeholder", node.name, args=defaults[node], name=node.name)
        for node in section.inputs
    }
    for node in section.nodes:
        copies[node] = graph.node_copy(node, lambda original: copies[original])
    graph.output(copies[section.output])
    targets = _weighted_targets(network, section.nodes)
    layers = sum(_layer_count(network.get_submodule(name)) if _is_module(network, name) else 1 for name in targets)
    return Stage(targets[0] if targets else "start", GraphModule(network, graph), layers)


def _is_weight(network: nn.Module, name: str) -> bool:
    path, _, attribute = name.rpartition(".")
    return isinstance(getattr(network.get_submodule(path), attribute), nn.Parameter)


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
        for training in (False, True):
            network.train(training)
            torch.manual_seed(0)
            expected = network(*inputs)
            torch.manual_seed(0)
            if not isinstance(expected, Tensor) or not torch.allclose(expected, staged(*inputs), equal_nan=True):
                return False
    return True


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
