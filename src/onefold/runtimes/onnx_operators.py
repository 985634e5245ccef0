"""The operators of ONNX in PyTorch, by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import numpy_helper
from torch.nn import functional

from onefold.vocabulary.errors import ModelError

Tensor = torch.Tensor
MAX_INT = 2**31 - 1  # from here on, an end of a slice means the end


@dataclass(frozen=True)
class Call:
    """One node with its arguments: tensors, or integers and lists of them that come from shapes; None if left out."""

    arguments: tuple[Any, ...]
    constants: tuple[Any, ...]  # the values of arguments that are known
    attributes: Mapping[str, Any]
    outputs: int

    def __getitem__(self, index: int) -> Any:
        return self.arguments[index] if index < len(self.arguments) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute; text is decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def integers(self, index: int, name: str = "") -> list[Any] | None:
        """Return integers that are an argument, or an attribute in older versions of ONNX; None if left out."""
        if name in self.attributes:
            return list(self.attributes[name])
        value = self[index]
        if value is None:
            return None
        if not isinstance(value, Tensor):
            return list(value) if isinstance(value, (list, tuple)) else [value]
        known = self.constants[index]
        if known is None:
            raise ModelError("a shape, an axis or an index depends on the data")
        return [int(number) for number in np.atleast_1d(known).tolist()]


Operator = Callable[[Call], Any]


def _spatial(call: Call, rank: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return strides, dilations, and the padding before and after each dimension."""
    if call.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise ModelError("automatic padding is not supported")
    strides = list(call.attribute("strides", [1] * rank))
    dilations = list(call.attribute("dilations", [1] * rank))
    pads = list(call.attribute("pads", [0] * 2 * rank))
    return strides, dilations, pads[:rank], pads[rank:]


def _padded(x: Tensor, before: list[int], after: list[int], value: float) -> tuple[Tensor, list[int]]:
    """Return the input and the padding that is left for the operator, which is the same on both sides."""
    if before == after:
        return x, before
    pads = [pad for pair in zip(reversed(before), reversed(after)) for pad in pair]
    return functional.pad(x, pads, value=value), [0] * len(before)


def _conv(call: Call) -> Tensor:
    x, weight, bias = call[0], call[1], call[2]
    rank = weight.dim() - 2
    strides, dilations, before, after = _spatial(call, rank)
    x, padding = _padded(x, before, after, 0.0)
    apply = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    return apply(x, weight, bias, strides, padding, dilations, call.attribute("group", 1))


def _conv_transpose(call: Call) -> Tensor:
    x, weight, bias = call[0], call[1], call[2]
    rank = weight.dim() - 2
    strides, dilations, before, after = _spatial(call, rank)
    if before != after or call.attribute("output_shape"):
        raise ModelError("a transposed convolution with another padding on each side is not supported")
    extra = list(call.attribute("output_padding", [0] * rank))
    apply: Any = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    return apply(x, weight, bias, strides, before, extra, call.attribute("group", 1), dilations)  # type: ignore[no-any-return]


def _max_pool(call: Call) -> Tensor:
    kernel = list(call.attribute("kernel_shape"))
    strides, dilations, before, after = _spatial(call, len(kernel))
    x, padding = _padded(call[0], before, after, -math.inf)
    apply: Any = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[len(kernel) - 1]
    return apply(x, kernel, strides, padding, dilations, bool(call.attribute("ceil_mode", 0)))  # type: ignore[no-any-return]


def _average_pool(call: Call) -> Tensor:
    kernel = list(call.attribute("kernel_shape"))
    strides, _, before, after = _spatial(call, len(kernel))
    if before != after:
        raise ModelError("average pooling with another padding on each side is not supported")
    apply: Any = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(kernel) - 1]
    include = bool(call.attribute("count_include_pad", 0))
    return apply(call[0], kernel, strides, before, bool(call.attribute("ceil_mode", 0)), include)  # type: ignore[no-any-return]


def _gemm(call: Call) -> Tensor:
    left = call[0].t() if call.attribute("transA", 0) else call[0]
    weight = call[1] if call.attribute("transB", 0) else call[1].t()
    alpha, beta, bias = call.attribute("alpha", 1.0), call.attribute("beta", 1.0), call[2]
    if alpha == 1.0 and (bias is None or beta == 1.0) and (bias is None or bias.dim() == 1):
        return functional.linear(left, weight, bias)
    product: Tensor = alpha * functional.linear(left, weight)
    scaled: Tensor = product if bias is None else product + beta * bias
    return scaled


def _reduce(apply: Callable[..., Tensor]) -> Operator:
    def operator(call: Call) -> Tensor:
        axes = call.integers(1, "axes")
        if axes is None:
            if call.attribute("noop_with_empty_axes", 0):
                return call[0]  # type: ignore[no-any-return]
            axes = list(range(call[0].dim()))
        return apply(call[0], axes, bool(call.attribute("keepdims", 1)))

    return operator


def _index_of_extreme(apply: Callable[..., Tensor]) -> Operator:
    def operator(call: Call) -> Tensor:
        return apply(call[0], call.attribute("axis", 0), bool(call.attribute("keepdims", 1)))

    return operator


def _shape(call: Call) -> Any:
    shape = list(call[0].shape)
    return shape[call.attribute("start", 0) : call.attribute("end", len(shape))]


def _gather(call: Call) -> Any:
    data, axis = call[0], call.attribute("axis", 0)
    if isinstance(data, list):
        indices = call.integers(1)
        picked = [data[index] for index in indices or []]
        return picked if call.constants[1] is not None and call.constants[1].ndim else picked[0]
    known = call.constants[1]
    if known is not None and known.ndim == 0:
        return data.select(axis, int(known))
    if axis == 0 and data.dim() == 2 and data.is_floating_point():
        return functional.embedding(call[1].long(), data)
    indices = call[1].long()
    picked = data.index_select(axis, torch.where(indices < 0, indices + data.shape[axis], indices).reshape(-1))
    return picked.reshape((*data.shape[:axis], *indices.shape, *data.shape[axis:][1:]))


def _concat(call: Call) -> Any:
    if any(isinstance(argument, (list, int, torch.SymInt)) for argument in call.arguments):
        return [number for index in range(len(call.arguments)) for number in call.integers(index) or []]
    return torch.cat(list(call.arguments), call.attribute("axis", 0))


def _reshape(call: Call) -> Tensor:
    x, shape = call[0], call.integers(1) or []
    keeps_zero = bool(call.attribute("allowzero", 0))
    return x.reshape([x.shape[at] if size == 0 and not keeps_zero else size for at, size in enumerate(shape)])  # type: ignore[no-any-return]


def _unsqueeze(call: Call) -> Any:
    axes = call.integers(1, "axes") or []
    if not isinstance(call[0], Tensor):
        return [call[0]]
    x, rank = call[0], call[0].dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _squeeze(call: Call) -> Any:
    if not isinstance(call[0], Tensor):
        return call[0][0] if isinstance(call[0], list) else call[0]
    axes = call.integers(1, "axes")
    return call[0].squeeze() if axes is None else call[0].squeeze([axis % call[0].dim() for axis in axes])


def _slice(call: Call) -> Any:
    starts, ends = call.integers(1, "starts") or [], call.integers(2, "ends") or []
    axes, steps = call.integers(3, "axes") or list(range(len(starts))), call.integers(4) or [1] * len(starts)
    x = call[0]
    if isinstance(x, list):
        return x[starts[0] : ends[0] : steps[0]]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            if step != -1 or start not in (-1, x.shape[axis] - 1):
                raise ModelError("a slice with a negative step is not supported")
            x = x.flip(axis)
            continue
        size = x.shape[axis]
        stop = size if isinstance(end, int) and end >= MAX_INT else end
        x = x[(slice(None),) * (axis % x.dim()) + (slice(start, stop, step),)]
    return x


def _split(call: Call) -> tuple[Tensor, ...]:
    axis, sizes = call.attribute("axis", 0), call.integers(1, "split")
    if sizes is None:
        sizes = [math.ceil(call[0].shape[axis] / call.outputs)] * call.outputs
        sizes[-1] = call[0].shape[axis] - sum(sizes[:-1])
    return tuple(torch.split(call[0], sizes, axis))


def _pad(call: Call) -> Tensor:
    pads, x = call.integers(1, "pads") or [], call[0]
    mode = call.attribute("mode", "constant")
    axes = call.integers(3) or list(range(x.dim()))
    both = {axis % x.dim(): (pads[at], pads[at + len(axes)]) for at, axis in enumerate(axes)}
    flat = [pad for axis in reversed(range(x.dim())) for pad in both.get(axis, (0, 0))]
    if mode == "constant":
        value = call.constants[2] if len(call.constants) > 2 else None
        return functional.pad(x, flat, value=0.0 if value is None else float(value))
    while flat and flat[-2:] == [0, 0]:
        flat = flat[:-2]
    return functional.pad(x, flat, mode={"edge": "replicate", "reflect": "reflect", "wrap": "circular"}[mode])


def _expand(call: Call) -> Tensor:
    shape = call.integers(1) or []
    rank = max(len(shape), call[0].dim())
    own, wanted = [1] * (rank - call[0].dim()) + list(call[0].shape), [1] * (rank - len(shape)) + shape
    return call[0].expand([size if isinstance(to, int) and to == 1 else to for size, to in zip(own, wanted)])  # type: ignore[no-any-return]


def _filled(call: Call) -> Tensor:
    value = call.attribute("value")
    array = np.zeros(1, "f4") if value is None else numpy_helper.to_array(value)
    return torch.full(call.integers(0) or [], array.reshape(-1)[0].item(), dtype=torch.from_numpy(array).dtype)


_TORCH_TYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64,
}  # fmt: skip


def _cast(call: Call) -> Any:
    wanted = call.attribute("to")
    if wanted not in _TORCH_TYPES:
        raise ModelError(f"a cast to ONNX type {wanted} is not supported")
    return call[0].to(_TORCH_TYPES[wanted]) if isinstance(call[0], Tensor) else call[0]


def _clip(call: Call) -> Tensor:
    low = call.attributes.get("min", call.constants[1] if len(call.constants) > 1 else None)
    high = call.attributes.get("max", call.constants[2] if len(call.constants) > 2 else None)
    bounds = [None if bound is None else float(bound) for bound in (low, high)]
    return torch.clamp(call[0], *bounds)


def _layer_norm(call: Call) -> Tensor:
    shape = list(call[1].shape)
    return functional.layer_norm(call[0], shape, call[1], call[2], call.attribute("epsilon", 1e-5))


def _broadcast(parameter: Tensor | None, x: Tensor, axis: int) -> Any:
    """Return a parameter per channel with the rank of the input."""
    if parameter is None or parameter.dim() == 0 or parameter.numel() == 1:
        return parameter
    shape = [1] * x.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


def _dequantize(call: Call) -> Tensor:
    axis = call.attribute("axis", 1)
    scale, zero = _broadcast(call[1], call[0], axis), _broadcast(call[2], call[0], axis)
    values = call[0].float()
    return (values if zero is None else values - zero.float()) * scale  # type: ignore[no-any-return]


def _quantize(call: Call) -> Tensor:
    """Round to integers, which stay floats: converters know few operators on integers."""
    axis = call.attribute("axis", 1)
    scale, zero = _broadcast(call[1], call[0], axis), _broadcast(call[2], call[0], axis)
    signed = call[2] is not None and call[2].dtype == torch.int8
    low, high = (-128.0, 127.0) if signed else (0.0, 255.0)
    rounded = torch.round(call[0] / scale)
    return torch.clamp(rounded if zero is None else rounded + zero.float(), low, high)


def _dynamic_quantize(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    x = call[0]
    high, low = torch.clamp(x.amax(), min=0.0), torch.clamp(x.amin(), max=0.0)
    scale = (high - low) / 255.0
    zero = torch.clamp(torch.round(-low / scale), 0.0, 255.0)
    return torch.clamp(torch.round(x / scale) + zero, 0.0, 255.0), scale, zero


def _integer_matmul(call: Call) -> Tensor:
    left, right = call[0].float(), call[1].float()
    left = left if call[2] is None else left - call[2].float()
    return torch.matmul(left, right if call[3] is None else right - call[3].float())


def _recurrent(apply: Callable[..., Any], states: int) -> Operator:
    """Return a recurrent layer. Its weights are PyTorch's: `onefold.runtimes.onnx_weights` has put them in order."""

    def operator(call: Call) -> tuple[Tensor, ...]:
        x, hidden, flat = call[0], call.attribute("hidden_size"), list(call.arguments[1 + states :])
        directions = 2 if call.attribute("direction", "forward") == "bidirectional" else 1
        empty = torch.zeros(directions, x.shape[1], hidden)
        initial = [empty if call[1 + at] is None else call[1 + at] for at in range(states)]
        has_biases = len(flat) == 4 * directions
        start = tuple(initial) if states == 2 else initial[0]
        outputs, *last = apply(x, start, flat, has_biases, 1, 0.0, False, directions == 2, False)
        by_direction = outputs.reshape(x.shape[0], x.shape[1], directions, hidden).permute(0, 2, 1, 3)
        return (by_direction, *last)

    return operator


def _binary(apply: Callable[[Any, Any], Any]) -> Operator:
    def operator(call: Call) -> Any:
        left, right = (_number(call, at) for at in (0, 1))
        return apply(left, right)

    return operator


def _number(call: Call, index: int) -> Any:
    """Return an argument of arithmetic; where the other one is an integer of a shape, a constant is one too."""
    is_shape = any(not isinstance(argument, Tensor) for argument in call.arguments)
    if not is_shape:
        return call[index]
    numbers = call.integers(index) or []
    if len(numbers) != 1:
        raise ModelError("arithmetic with whole shapes is not supported")
    return numbers[0]


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, Tensor) and left.is_floating_point():
        return left / right
    return torch.div(left, right, rounding_mode="trunc") if isinstance(left, Tensor) else left // right


def _folded(apply: Callable[[Any, Any], Any]) -> Operator:
    def operator(call: Call) -> Any:
        result = call[0]
        for argument in call.arguments[1:]:
            result = apply(result, argument)
        return result

    return operator


def _unary(apply: Callable[[Any], Any]) -> Operator:
    return lambda call: apply(call[0])


def _constant(call: Call) -> Tensor:
    for name, value in call.attributes.items():
        array = numpy_helper.to_array(value) if name == "value" else np.asarray(value)
        return torch.from_numpy(np.array(array, "f4" if name in ("value_float", "value_floats") else array.dtype))
    raise ModelError("a constant has no value")


def _flatten(call: Call) -> Tensor:
    x, axis = call[0], call.attribute("axis", 1)
    return x.flatten(1) if axis == 1 else x.reshape(math.prod(x.shape[:axis]), -1)  # type: ignore[no-any-return]


def _axis(apply: Callable[..., Tensor]) -> Operator:
    return lambda call: apply(call[0], call.attribute("axis", -1))


OPERATORS: dict[str, Operator] = {
    "Abs": _unary(torch.abs),
    "Add": _binary(lambda a, b: a + b),
    "And": _binary(torch.logical_and),
    "ArgMax": _index_of_extreme(torch.argmax),
    "ArgMin": _index_of_extreme(torch.argmin),
    "AveragePool": _average_pool,
    "BatchNormalization": lambda call: functional.batch_norm(
        call[0], call[3], call[4], call[1], call[2], False, 0.0, call.attribute("epsilon", 1e-5)
    ),
    "Cast": _cast,
    "Ceil": _unary(torch.ceil),
    "Clip": _clip,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Cos": _unary(torch.cos),
    "DequantizeLinear": _dequantize,
    "Div": _binary(_divide),
    "Dropout": _unary(lambda x: x),
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Elu": lambda call: functional.elu(call[0], call.attribute("alpha", 1.0)),
    "Equal": _binary(lambda a, b: a == b),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _unary(torch.floor),
    "GRU": _recurrent(torch._VF.gru, 1),
    "Gather": _gather,
    "Gelu": lambda call: functional.gelu(call[0], approximate=call.attribute("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": _unary(lambda x: x.mean(list(range(2, x.dim())), True)),
    "GlobalMaxPool": _unary(lambda x: x.amax(list(range(2, x.dim())), True)),
    "Greater": _binary(lambda a, b: a > b),
    "GreaterOrEqual": _binary(lambda a, b: a >= b),
    "GroupNormalization": lambda call: functional.group_norm(
        call[0], call.attribute("num_groups"), call[1], call[2], call.attribute("epsilon", 1e-5)
    ),
    "HardSigmoid": lambda call: torch.clamp(
        call[0] * call.attribute("alpha", 0.2) + call.attribute("beta", 0.5), 0.0, 1.0
    ),
    "HardSwish": _unary(functional.hardswish),
    "Identity": _unary(lambda x: x),
    "InstanceNormalization": lambda call: functional.instance_norm(
        call[0], weight=call[1], bias=call[2], eps=call.attribute("epsilon", 1e-5)
    ),
    "LSTM": _recurrent(torch._VF.lstm, 2),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda call: functional.leaky_relu(call[0], call.attribute("alpha", 0.01)),
    "Less": _binary(lambda a, b: a < b),
    "LessOrEqual": _binary(lambda a, b: a <= b),
    "Log": _unary(torch.log),
    "LogSoftmax": _axis(torch.log_softmax),
    "MatMul": _binary(torch.matmul),
    "MatMulInteger": _integer_matmul,
    "Max": _folded(torch.maximum),
    "MaxPool": _max_pool,
    "Mean": lambda call: torch.stack(list(call.arguments)).mean(0),
    "Min": _folded(torch.minimum),
    "Mod": _binary(lambda a, b: a % b),
    "Mul": _binary(lambda a, b: a * b),
    "Neg": _unary(torch.neg),
    "Not": _unary(torch.logical_not),
    "Or": _binary(torch.logical_or),
    "PRelu": _binary(lambda x, slope: torch.where(x >= 0, x, x * slope)),
    "Pad": _pad,
    "Pow": _binary(torch.pow),
    "QuantizeLinear": _quantize,
    "RNN": _recurrent(torch._VF.rnn_tanh, 1),
    "Reciprocal": _unary(torch.reciprocal),
    "ReduceL2": _reduce(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceSum": _reduce(torch.sum),
    "Relu": _unary(torch.relu),
    "Reshape": _reshape,
    "Round": _unary(torch.round),
    "Selu": _unary(functional.selu),
    "Shape": _shape,
    "Sigmoid": _unary(torch.sigmoid),
    "Sign": _unary(torch.sign),
    "Sin": _unary(torch.sin),
    "Slice": _slice,
    "Softmax": _axis(torch.softmax),
    "Softplus": _unary(functional.softplus),
    "Split": _split,
    "Sqrt": _unary(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(lambda a, b: a - b),
    "Sum": _folded(torch.add),
    "Tanh": _unary(torch.tanh),
    "Tile": lambda call: call[0].repeat(call.integers(1) or []),
    "Transpose": lambda call: call[0].permute(call.attribute("perm", list(reversed(range(call[0].dim()))))),
    "Unsqueeze": _unsqueeze,
    "Where": lambda call: torch.where(call[0], call[1], call[2]),
}
