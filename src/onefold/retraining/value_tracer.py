"""A tracer whose proxies carry the values that they stand for.

Control flow that depends on sizes, on types and on missing arguments takes the branch that it takes in a forward with
these values. Control flow that depends on data raises TraceError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Proxy, Tracer
from torch.fx.node import map_aggregate
from torch.fx.proxy import TraceError
from torch.nn import functional
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property

from onefold.retraining.graph_nodes import drop_unused, is_inplace_name, node_name

IS_TENSOR, SIZE = "is_tensor", "size"  # metadata of a node: whether it is a tensor, and the number that sizes give

# Modules of torch.nn are kept whole, except those that consist of layers.
COMPOSITE_MODULES = (
    nn.Transformer, nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)  # fmt: skip
SIZED_CREATORS = ("zeros", "ones", "empty")
SIZED_METHODS = ("expand", "view", "reshape", "repeat")
SIZE_QUERIES = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "get_device", "type",
    "is_floating_point", "is_complex", "is_contiguous", "is_same_size", "__len__", "len", "broadcast_shapes",
}  # fmt: skip
SIZED_BY_DATA = {
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "repeat_interleave", "bincount", "where",
}  # fmt: skip


class ForwardTracer(Tracer):
    """Trace into every module except those that are known to be untraceable, and run what is traced."""

    def __init__(self, untraceable: set[str], inputs: list[Tensor]) -> None:
        super().__init__()
        self.untraceable = untraceable
        self.inputs = inputs
        self.call_stack: list[str] = []
        self._is_running = False
        self._modules_inside: set[nn.Module] = set()
        self._modes = _global_modes()

    def trace_beside_forward(self, network: nn.Module) -> Graph:
        """Trace the forward with the inputs as arguments, and drop what nothing uses."""
        self._modules_inside = {*network.modules()}
        with _ProxyArguments(self), _accepted_proxies():
            graph = self.trace(network)
        drop_unused(network, graph)
        return graph

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,  # noqa: ARG002
        concrete_args: Any = None,  # noqa: ARG002
    ) -> tuple[Any, list[Any]]:
        """Return a placeholder for each input; other arguments keep their defaults."""
        placeholders = [
            ValueProxy(self.create_node("placeholder", f"input_{index}", (), {}), self, value, is_from_data=True)
            for index, value in enumerate(self.inputs)
        ]
        for proxy in placeholders:
            proxy.node.meta[IS_TENSOR] = True
        return root_fn, [self.root, *placeholders]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            module_qualified_name in self.untraceable
            or not list(m.children())
            or (super().is_leaf_module(m, module_qualified_name) and not isinstance(m, COMPOSITE_MODULES))
        )

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_running:
            return forward(*args, **kwargs)
        if m not in self._modules_inside and not any(True for _ in m.parameters()):
            return forward(*args, **kwargs)  # made by the forward itself, as nn.ReLU()(x)
        self.call_stack.append(self.path_of_module(m))
        value = super().call_module(m, forward, args, kwargs)
        self.call_stack.pop()
        return value

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._is_running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        """Keep the types of dictionaries, such as the output records of a library."""
        if isinstance(a, dict) and type(a) is not dict:
            entries = {key: self.create_arg(value) for key, value in a.items()}
            keywords = is_dataclass(a) and {field.name for field in fields(a)} >= set(entries)
            return self.create_node("call_function", type(a), *(((), entries) if keywords else ((entries,), {})))
        return super().create_arg(a)

    def record(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Add a call of a torch function to the graph."""
        if is_tensor_method_or_property(function):
            return self.create_proxy("call_method", function.__name__, args, kwargs)
        return self.create_proxy("call_function", function, args, kwargs)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> Any:
        if _global_modes() != self._modes:
            raise TraceError("a graph does not record gradient mode and autocast")
        values, keywords = _values(args), _values(kwargs)
        value = self._run(kind, target, values, keywords)
        sized_by_data = _is_sized_by_data(target, values, (args, kwargs))
        from_data = kind in ("call_module", "get_attr") or _is_from_data(target, (args, kwargs))
        if from_data and args and isinstance(args[0], ValueProxy) and is_inplace_name(node_name(target)):
            args[0].is_from_data = True
        options["proxy_factory_fn"] = lambda node: ValueProxy(
            node, self, value, is_from_data=from_data, is_sized_by_data=sized_by_data
        )
        proxy = super().create_proxy(kind, target, args, kwargs, *more, **options)
        proxy.node.meta[IS_TENSOR] = isinstance(value, Tensor)
        proxy.node.meta[SIZE] = value if type(value) is int and not from_data else None
        return proxy

    def _run(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        was_running, self._is_running = self._is_running, True
        try:
            with torch.no_grad():
                if kind == "call_function":
                    return target(*args, **kwargs)
                if kind == "call_method":
                    return getattr(args[0], target)(*args[1:], **kwargs)
                if kind == "call_module":
                    return self.root.get_submodule(target)(*args, **kwargs)
                path, _, attribute = target.rpartition(".")
                return getattr(self.root.get_submodule(path), attribute)
        finally:
            self._is_running = was_running


class ValueProxy(Proxy):
    """A proxy that knows the value it stands for, and whether that depends on data or on sizes alone."""

    def __init__(
        self, node: Node, tracer: ForwardTracer, value: Any, *, is_from_data: bool, is_sized_by_data: bool = False
    ) -> None:
        super().__init__(node, tracer)
        self.recorder = tracer
        self.value = value
        self.is_from_data = is_from_data
        self.is_sized_by_data = is_sized_by_data

    def __getattr__(self, k: str) -> Any:
        value = getattr(self.__dict__["value"], k)
        if isinstance(value, (Tensor, tuple)):
            return self.tracer.create_proxy("call_function", getattr, (self, k), {})
        if callable(value):
            return lambda *args, **kwargs: self.tracer.create_proxy("call_method", k, (self, *args), kwargs)
        return value  # what does not depend on data: a type, a device, the number of dimensions

    def __bool__(self) -> bool:
        return bool(self._fixed())

    def __int__(self) -> int:
        return int(self._fixed())

    def __index__(self) -> int:
        return int(self._fixed().__index__())

    def __float__(self) -> float:
        return float(self._fixed())

    def __len__(self) -> int:
        has_fixed_length = isinstance(self.value, (Tensor, tuple, list, dict)) and not self.is_sized_by_data
        return len(self.value if has_fixed_length else self._fixed())

    def __contains__(self, item: object) -> bool:
        return item in self._fixed()

    def __iter__(self) -> Iterator[Any]:
        return iter([self[index] for index in range(len(self))])  # type: ignore[index]

    def keys(self) -> Any:
        """Return the keys of a dictionary."""
        return self.value.keys()

    def _fixed(self) -> Any:
        """Return the value, if it is the same for all data."""
        if self.is_from_data or self.is_sized_by_data:
            raise TraceError(f"control flow depends on the data of {self.node.name}")
        return self.value

    @classmethod
    def __torch_function__(
        cls,
        orig_method: Callable[..., Any],
        types: Any,
        args: Any = None,
        kwargs: Any = None,
    ) -> Any:
        return next(_proxies((args, kwargs))).recorder.record(orig_method, args or (), kwargs or {})


class _ProxyArguments(TorchFunctionMode):
    """Record calls of torch functions that do not dispatch on a proxy, such as `torch.arange(x.shape[1])`."""

    def __init__(self, tracer: ForwardTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if next(_proxies((args, kwargs)), None) is not None:
            return self.tracer.record(func, args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def _accepted_proxies() -> Iterator[None]:
    """Make torch accept proxies where it checks types itself: as masks, and as the first of several sizes."""
    masks = functional._none_or_dtype
    creators = {name: getattr(torch, name) for name in SIZED_CREATORS}
    try:
        functional._none_or_dtype = lambda input: None if input is None else input.dtype
        for name, creator in creators.items():
            setattr(torch, name, _with_sizes_in_a_tuple(creator, 0))
        for name in SIZED_METHODS:  # which Tensor inherits
            setattr(Tensor, name, _with_sizes_in_a_tuple(getattr(Tensor, name), 1))
        yield
    finally:
        functional._none_or_dtype = masks
        for name, creator in creators.items():
            setattr(torch, name, creator)
        for name in SIZED_METHODS:
            delattr(Tensor, name)


def _with_sizes_in_a_tuple(function: Callable[..., Any], first: int) -> Callable[..., Any]:
    def accepting(*args: Any, **kwargs: Any) -> Any:
        if len(args) > first and isinstance(args[first], ValueProxy) and not isinstance(args[first].value, tuple):
            args = (*args[:first], args[first:])
        return function(*args, **kwargs)

    return accepting


def _global_modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _leaves(structure: Any) -> list[Any]:
    leaves: list[Any] = []
    map_aggregate(structure, leaves.append)
    return leaves


def _proxies(structure: Any) -> Iterator[ValueProxy]:
    return (leaf for leaf in _leaves(structure) if isinstance(leaf, ValueProxy))


def _values(structure: Any) -> Any:
    return map_aggregate(structure, lambda leaf: leaf.value if isinstance(leaf, ValueProxy) else leaf)


def _is_from_data(target: Any, arguments: Any) -> bool:
    """Return whether a result depends on data: on inputs, or on weights, but not on the size of a tensor alone."""
    is_query = target is getattr or node_name(target) in SIZE_QUERIES
    return any(proxy.is_sized_by_data if is_query else proxy.is_from_data for proxy in _proxies(arguments))


def _is_sized_by_data(target: Any, args: Any, arguments: Any) -> bool:
    """Return whether the sizes of a result depend on the data of its arguments."""
    if any(proxy.is_sized_by_data for proxy in _proxies(arguments)):
        return True
    name = node_name(target)
    if name in ("getitem", "__getitem__"):
        return any(isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in _leaves(args[1:]))
    return name in SIZED_BY_DATA and not (name == "where" and len(args) > 1)
