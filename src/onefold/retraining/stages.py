"""An ordinary network as a chain of stretches, each of which takes one tensor and hands one on.

Nobody marks anything. The network's forward is followed once (`torch.fx`); it is cut wherever a single tensor is all
that later layers need: between the blocks of a residual network, between the halves of a transformer's block. What
cannot be followed, a module with conditions on its data, stays whole. A network that cannot be followed at all is one
stretch: it can be retrained in small batches, but neither frozen from the front nor computed again in parts.
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
    """A stretch of the network. It shares its modules and weights with the network that it is a part of."""

    name: str
    run: nn.Module
    layers: int  # modules with weights of their own, and weights used directly

    def __call__(self, *values: Any) -> Any:
        """What it hands on. Not by way of the graph's own call, which imports the compiler to word an error."""
        return self.run.forward(*values) if isinstance(self.run, GraphModule) else self.run(*values)

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """Its weights, each once."""
        return list(self.run.parameters())


@dataclass(frozen=True, eq=False)
class StagedNetwork:
    """The whole network, in order."""

    network: nn.Module
    stages: tuple[Stage, ...]

    @cached_property
    def layers(self) -> int:
        """Of all stretches."""
        return sum(stage.layers for stage in self.stages)

    def frozen_stages(self, freeze_rate: float) -> int:
        """How many stretches stay as they are: as many from the front as have no more than this share of layers.

        At a rate of 1 all but the last one with weights do: something must learn.
        """
        return min(bisect_right(self._layers_up_to, freeze_rate * self.layers + 1e-9), self._last)

    @cached_property
    def _layers_up_to(self) -> list[int]:
        """How many layers there are up to the end of each stretch."""
        return list(accumulate(stage.layers for stage in self.stages))

    @cached_property
    def _last(self) -> int:
        """The last stretch with weights."""
        return max((at for at, stage in enumerate(self.stages) if stage.layers), default=0)

    def __call__(self, *inputs: Tensor) -> Any:
        """What the network answers."""
        values: Any = inputs
        for at, stage in enumerate(self.stages):
            values = stage(*values) if at == 0 else stage(values)
        return values


def split_into_stages(network: nn.Module, inputs: Inputs) -> StagedNetwork:
    """The chain of a network; `inputs` are a few samples to follow it with. The network is left as it was."""
    before = set(vars(network))
    try:
        with preserved_state(network):
            graph = _followed(network)
            staged = (
                None
                if graph is None
                else StagedNetwork(network, _stages(network, graph, _kinds(network, graph, inputs)))
            )
            if staged is not None and staged.stages and _is_the_same(network, staged, inputs):
                return staged
    except Exception:  # noqa: BLE001 - what was followed does not run: an argument that was left out, say
        pass
    finally:
        _drop_constants(network, before)
    return StagedNetwork(network, (Stage("network", network, _layers(network)),))


class _Follower(Tracer):
    """Follows a forward into every module but those that were found to be impossible to follow."""

    def __init__(self, whole: set[str]) -> None:
        super().__init__()
        self.whole = whole
        self.inside: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            module_qualified_name in self.whole
            or not list(m.children())
            or super().is_leaf_module(m, module_qualified_name)
        )

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.inside.append(self.path_of_module(m))
        found = super().call_module(m, forward, args, kwargs)
        self.inside.pop()
        return found


def _followed(network: nn.Module) -> Graph | None:
    """The graph of a network's forward, with modules that cannot be followed left whole; None where it is all one."""
    whole: set[str] = set()
    before = set(vars(network))
    while True:
        graphs = []
        for training in (False, True):
            follower = _Follower(whole)
            _drop_constants(network, before)
            try:
                graphs.append(follower.trace(network.train(training)))
            except Exception:  # noqa: BLE001 - a forward may raise anything when it meets a stand-in
                guilty = follower.inside[-1] if follower.inside else ""
                break
        else:
            switch = _switch(*graphs)
            if switch is None:
                followed = GraphModule(network, graphs[1])
                followed.graph.eliminate_dead_code()  # half of a pair that nobody looks at would count as needed
                return followed.graph
            guilty = switch
        if not guilty or guilty in whole:
            return None
        whole.add(guilty)


def _drop_constants(network: nn.Module, before: set[str]) -> None:
    """torch.fx makes attributes of the network out of the constants in its forward."""
    for name in set(vars(network)) - before:
        delattr(network, name)


def _switch(serving: Graph, training: Graph) -> str | None:
    """The module whose forward reads whether it trains, as for dropout by a function: a graph would fix it for good."""
    for one, other in zip_longest(training.nodes, serving.nodes):
        if one is None or other is None or (one.op, one.target, str(one.args), str(one.kwargs)) != (
            other.op, other.target, str(other.args), str(other.kwargs)
        ):  # fmt: skip
            stack = [*(one or other).meta.get("nn_module_stack", ())]
            return stack[-1] if stack else ""
    return None


class _Noting(Interpreter):
    """Runs a graph and notes which of its values are tensors."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.tensors: set[str] = set()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.tensors.add(n.name)
        return value


def _kinds(network: nn.Module, graph: Graph, inputs: Inputs) -> set[str]:
    """The nodes whose values are tensors."""
    noting = _Noting(GraphModule(network, graph))
    with torch.no_grad(), preserved_state(network):
        network.eval()
        noting.run(*inputs)
    return noting.tensors


def _stages(network: nn.Module, graph: Graph, tensors: set[str]) -> tuple[Stage, ...]:
    """The stretches between two places where one tensor is all that is needed further on."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    entries = [node for node in graph.nodes if node.op == "placeholder"]
    end = next(node for node in graph.nodes if node.op == "output")
    if not isinstance(end.args[0], Node) or not nodes:
        return ()
    place = {node: at for at, node in enumerate(nodes)}
    last_use = {node: max((place.get(user, len(nodes)) for user in node.users), default=-1) for node in graph.nodes}
    checkpoint_segments: list[tuple[list[Node], list[Node], Node]] = []  # what comes in, what is done, what goes out
    coming, first = entries, 0
    for at, node in enumerate(nodes):
        alive = [one for one in [*entries, *nodes[: at + 1]] if last_use[one] > at]
        ends_here = at == len(nodes) - 1
        is_lost = any(_changes(network, user) for user in node.users)  # a stretch cannot be run twice from it
        if ends_here or (alive == [node] and node.name in tensors and not is_lost):
            checkpoint_segments.append((coming, nodes[first : at + 1], end.args[0] if ends_here else node))
            coming, first = [node], at + 1
    return tuple(_joined(network, checkpoint_segments))


def _changes(network: nn.Module, node: Node) -> bool:
    """Whether an operation changes what it is given."""
    if node.op == "call_module":
        return bool(getattr(network.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return bool(node.kwargs.get("inplace")) or name in ("iadd", "isub", "imul") or name.endswith("_")


def _joined(network: nn.Module, checkpoint_segments: list[tuple[list[Node], list[Node], Node]]) -> list[Stage]:
    """Links; a stretch without weights goes with the one before it, since there is nothing in it to freeze."""
    groups: list[tuple[list[Node], list[Node], Node]] = []
    for coming, nodes, going in checkpoint_segments:
        if groups and not _modules(network, nodes):
            groups[-1] = (groups[-1][0], groups[-1][1] + nodes, going)
        else:
            groups.append((coming, nodes, going))
    return [_stage(network, *group) for group in groups]


def _modules(network: nn.Module, nodes: Sequence[Node]) -> list[str]:
    """The targets in these nodes that have weights."""
    found = []
    for node in nodes:
        is_module = node.op == "call_module" and any(True for _ in network.get_submodule(str(node.target)).parameters())
        if is_module or (node.op == "get_attr" and _is_weight(network, str(node.target))):
            found.append(str(node.target))
    return list(dict.fromkeys(found))


def _stage(network: nn.Module, coming: list[Node], nodes: list[Node], going: Node) -> Stage:
    part = Graph()
    defaults = {node: node.args if node.op == "placeholder" else () for node in coming}
    copies: dict[Node, Node] = {
        node: part.create_node("placeholder", node.name, args=defaults[node], name=node.name) for node in coming
    }
    for node in nodes:
        copies[node] = part.node_copy(node, lambda one: copies[one])
    part.output(copies[going])
    named = _modules(network, nodes)
    layers = sum(_layers(network.get_submodule(name)) if _is_module(network, name) else 1 for name in named)
    return Stage(named[0] if named else "start", GraphModule(network, part), layers)


def _is_weight(network: nn.Module, name: str) -> bool:
    path, _, own = name.rpartition(".")
    return isinstance(getattr(network.get_submodule(path), own), nn.Parameter)


def _is_module(network: nn.Module, name: str) -> bool:
    try:
        network.get_submodule(name)
    except AttributeError:
        return False
    return True


def _layers(module: nn.Module) -> int:
    """How many modules inside have weights of their own."""
    return sum(1 for one in module.modules() if any(True for _ in one.parameters(recurse=False)))


def _is_the_same(network: nn.Module, staged: StagedNetwork, inputs: Inputs) -> bool:
    """Whether the chain answers as the network does, while training and while serving."""
    with torch.no_grad(), preserved_state(network):
        for training in (False, True):
            network.train(training)
            torch.manual_seed(0)
            expected = network(*inputs)
            torch.manual_seed(0)
            if not isinstance(expected, Tensor) or not torch.allclose(expected, staged(*inputs), equal_nan=True):
                return False
    return True


class preserved_state:  # noqa: N801 - used as `with untouched(network):`
    """Puts back what a trial run changes: the buffers, the modes, and the random numbers."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __enter__(self) -> None:
        self.buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        self.modes = {module: module.training for module in self.network.modules()}
        self.chance = RngState.now()

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for name, buffer in self.network.named_buffers():
                buffer.copy_(self.buffers[name])
        for module, mode in self.modes.items():
            module.training = mode
        self.chance.put_back()
