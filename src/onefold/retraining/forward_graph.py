"""The graph of a network's forward, traced with `torch.fx` beside a forward of a few samples.

Two traces, in evaluation mode with few and in training mode with more samples, must have equal graphs: what they differ
in depends on the mode or on the batch size. The innermost module that cannot be traced is kept as one node.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from onefold.retraining.graph_nodes import drop_unused
from onefold.retraining.value_tracer import SIZE, ForwardTracer

Inputs = Sequence[Tensor]
SMALL_BATCH, LARGE_BATCH = 2, 3  # samples of the two traces


def trace_forward(network: nn.Module, inputs: Inputs) -> Graph | None:
    """Return the graph of the forward; None if the network itself cannot be traced.

    Constants of the forward become attributes of the network, which the caller removes. The caller also restores the
    training modes, the buffers and the RNG state.
    """
    untraceable: set[str] = set()
    attributes = set(vars(network))
    while True:
        graphs = []
        for training, size in ((False, SMALL_BATCH), (True, LARGE_BATCH)):
            tracer = ForwardTracer(untraceable, resized(inputs, size))
            drop_constants(network, attributes)
            try:
                graphs.append(tracer.trace_beside_forward(network.train(training)))
            except Exception:  # noqa: BLE001 - a forward may raise anything when it meets a proxy
                culprit = tracer.call_stack[-1] if tracer.call_stack else ""
                break
        else:
            difference = _first_difference(*graphs)
            if difference is None:
                return _with_folded_sizes(network, *graphs)
            culprit = difference
        if not culprit or culprit in untraceable:
            return None
        untraceable |= _modules_like(network, culprit)


def _with_folded_sizes(network: nn.Module, few: Graph, many: Graph) -> Graph:
    """Replace each number that was computed from sizes by a constant or by the batch size, whichever it is.

    A size of an activation would tie what is computed from it, such as a mask, to that activation.
    """
    placeholder = next(node for node in many.nodes if node.op == "placeholder")
    with many.inserting_before(next(node for node in many.nodes if node.op != "placeholder")):
        shape = many.call_function(getattr, (placeholder, "shape"))
        batch_size = many.call_function(operator.getitem, (shape, 0))
    nodes = [node for node in many.nodes if node not in (shape, batch_size)]
    for few_node, node in zip(few.nodes, nodes):
        small, large = few_node.meta.get(SIZE), node.meta.get(SIZE)
        if small is not None and small == large:
            _replace_in_users(node, large)
        elif (small, large) == (SMALL_BATCH, LARGE_BATCH):
            _replace_in_users(node, batch_size)
    drop_unused(network, many)
    return many


def _replace_in_users(node: Node, value: Any) -> None:
    for user in [*node.users]:
        user.args = map_arg(user.args, lambda other: value if other is node else other)
        user.kwargs = map_arg(user.kwargs, lambda other: value if other is node else other)


def _modules_like(network: nn.Module, path: str) -> set[str]:
    """Return the paths of the modules of the same type: if one layer of a stack cannot be traced, none can."""
    culprit = network.get_submodule(path)
    if isinstance(culprit, nn.Sequential):  # its own forward can always be traced
        return {path}
    return {name for name, module in network.named_modules() if type(module) is type(culprit)}


def drop_constants(network: nn.Module, attributes: set[str]) -> None:
    """Remove the attributes that torch.fx adds to the network for constants in its forward."""
    for name in set(vars(network)) - attributes:
        delattr(network, name)


def resized(inputs: Inputs, size: int) -> list[Tensor]:
    """Return copies of the inputs with as many samples, which are repeated if there are fewer."""
    return [part[torch.arange(size, device=part.device) % len(part)] for part in inputs]


def _first_difference(first: Graph, other: Graph) -> str | None:
    """Return the innermost module of the first node that differs; None if the graphs are equal."""
    described = zip_longest(zip(_described(first), first.nodes), zip(_described(other), other.nodes))
    for one, two in described:
        if one is None or two is None or one[0] != two[0]:
            stack = (one or two)[1].meta.get("nn_module_stack", {})
            return str([*stack.values()][-1][0]) if stack else ""
    return None


def _described(graph: Graph) -> Iterator[tuple[Any, ...]]:
    """Yield a description of each node that refers to other nodes by number."""
    numbers = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        args, kwargs = (map_arg(part, lambda other: f"%{numbers[other]}") for part in (node.args, node.kwargs))
        yield node.op, node.target, str(args), str(kwargs)
