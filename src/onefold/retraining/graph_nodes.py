"""Classify the nodes of a traced forward: in-place operations, weights, and values computed from the inputs alone."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import Graph, Node

OPERATORS_WITH_UNDERSCORE = {"and_", "or_", "not_", "is_"}
INPLACE_OPERATORS = {
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "setitem",
}  # fmt: skip
NEW_TENSORS = {
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "clone",
}  # fmt: skip


def computed_from_inputs(network: nn.Module, graph: Graph) -> set[Node]:
    """Return the nodes that are computed from inputs and constants alone, without modules and weights."""
    computed: set[Node] = set()
    for node in graph.nodes:
        is_constant = node.op == "get_attr" and not is_weight(network, str(node.target))
        is_function = node.op in ("call_function", "call_method") and all(
            part in computed for part in node.all_input_nodes
        )
        overwrites = is_inplace(network, node) and not _is_only_use_of_new(node)
        is_overwritten = any(is_inplace(network, user) and not _is_only_use_of_new(user) for user in node.users)
        if (node.op == "placeholder" or is_constant or is_function) and not overwrites and not is_overwritten:
            computed.add(node)
    return computed


def is_weight(network: nn.Module, name: str) -> bool:
    """Return whether a node's target is a parameter of the network."""
    path, _, attribute = name.rpartition(".")
    return isinstance(getattr(network.get_submodule(path), attribute), nn.Parameter)


def _is_only_use_of_new(node: Node) -> bool:
    """Return whether an operation overwrites a new tensor that nothing else uses, as masks are filled."""
    overwritten = next(iter(node.all_input_nodes), None)
    return overwritten is not None and node_name(overwritten.target) in NEW_TENSORS and len(overwritten.users) == 1


def is_inplace(network: nn.Module, node: Node) -> bool:
    """Return whether an operation overwrites its input."""
    if node.op == "call_module":
        return bool(getattr(network.get_submodule(str(node.target)), "inplace", False))
    return bool(node.kwargs.get("inplace")) or is_inplace_name(node_name(node.target))


def is_inplace_name(name: str) -> bool:
    """Return whether an operation of this name overwrites its input."""
    is_method = name.endswith("_") and not name.endswith("__") and name not in OPERATORS_WITH_UNDERSCORE
    return is_method or name in INPLACE_OPERATORS


def node_name(target: Any) -> str:
    """Return the name of the operation that is a node's target."""
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def drop_unused(network: nn.Module, graph: Graph) -> None:
    """Remove what nothing uses, except calls of modules and operations that overwrite a tensor."""
    for node in reversed(graph.nodes):
        is_computed = node.op in ("call_function", "call_method") and not node.is_impure()
        if not node.users and (node.op == "get_attr" or (is_computed and not is_inplace(network, node))):
            graph.erase_node(node)
