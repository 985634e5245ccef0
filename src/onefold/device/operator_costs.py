"""The cost of ONNX operators: floating-point operations and memory traffic.

A multiply-add counts as two operations. Additions, comparisons and similar count one per element; transcendental
functions ten, about what a vectorized implementation takes. int8 operations count like fp32 operations; what they gain
is a matter of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from onefold.device.operator_groups import operator_group

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape of a tensor (None if unknown) and the size of its elements."""

    shape: tuple[int, ...] | None
    item_bytes: int

    @property
    def elements(self) -> int:
        """Return the number of elements; 0 if the shape is unknown."""
        return 0 if self.shape is None else prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the size in memory."""
        return self.elements * self.item_bytes


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """The cost of one operator at one batch size."""

    name: str
    kind: str  # ONNX operator type
    flops: float
    moved_bytes: float  # inputs, weights and outputs, each once
    unknown: bool = False  # kind or shapes are unknown: flops is 0 and moved_bytes covers the known tensors
    group: str = ""  # of operators that a device runs at a similar speed
    is_serial: bool = False  # runs on one thread, however many there are


def _kinds(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ABSENT = Tensor((), 0)  # an omitted optional input

_ELEMENTWISE = _kinds("""
    Abs Add And BitShift Ceil Celu Clip Div Equal Floor Greater GreaterOrEqual HardSigmoid HardSwish LeakyRelu Less
    LessOrEqual Max Mean Min Mod Mul Neg Not Or PRelu Reciprocal Relu Round Sign Sub Sum ThresholdedRelu Where Xor
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear IsNaN IsInf
""")
_TRANSCENDENTAL = _kinds("""
    Acos Acosh Asin Asinh Atan Atanh Cos Cosh Elu Erf Exp Gelu Log Mish Pow Selu Sigmoid Sin Sinh Softplus Softsign
    Sqrt Swish Tan Tanh
""")
_REDUCTIONS = _kinds("""
    ArgMax ArgMin CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK
""")
_VIEWS = _kinds("Flatten Reshape Shape Size Squeeze Unsqueeze")
_GATHERS = _kinds("Gather GatherElements GatherND Slice Split")  # read as much as they write, not their whole input
_COPIES = _kinds("""
    Cast CastLike Concat ConstantOfShape DepthToSpace Expand EyeLike OneHot Pad Range Resize ReverseSequence
    ScatterElements ScatterND SpaceToDepth Tile Transpose Trilu Upsample Compress NonZero
""")
_NORMALIZATIONS = {  # operations per element: mean, variance, square root, scale and shift
    "BatchNormalization": 2,
    "GroupNormalization": 8,
    "InstanceNormalization": 8,
    "LayerNormalization": 8,
    "LpNormalization": 4,
    "MeanVarianceNormalization": 8,
    "RMSNormalization": 5,
    "Softmax": 13,
    "LogSoftmax": 14,
    "Hardmax": 2,
}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Per hidden unit and time step, besides the matrix products: activations at ten each, then products and sums.
_POINTWISE = {"LSTM": 5 * 10 + 4, "GRU": 3 * 10 + 5, "RNN": 10}


_INT8_KINDS = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})


def operator_cost(
    name: str,
    kind: str,
    attributes: Attributes,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    is_quantized: bool = False,
) -> OperatorCost:
    """Return the cost of an operator of this ONNX kind on tensors of these shapes.

    `is_quantized` tells that its input was dequantized just before, which the runtime fuses to an int8 operator.
    """
    moved_bytes = _moved_bytes(kind, inputs, outputs)
    count = _COUNTS.get(kind)
    if count is None or any(tensor.shape is None for tensor in (*inputs, *outputs)):
        return OperatorCost(name, kind, 0.0, moved_bytes, unknown=True)
    try:
        flops = float(count(attributes, inputs, outputs))
        shapes, is_int8 = [_shape(tensor) for tensor in inputs], is_quantized or kind in _INT8_KINDS
        group = operator_group(kind, attributes, shapes, _shape(outputs[0]), is_int8=is_int8)
        return OperatorCost(name, kind, flops, moved_bytes, group=group, is_serial=_is_serial(kind, shapes))
    except (IndexError, KeyError, TypeError):  # the inputs do not follow the ONNX standard
        return OperatorCost(name, kind, 0.0, moved_bytes, unknown=True)


def _is_serial(kind: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Return whether ONNX Runtime has one thread run an operator: an LSTM is divided by samples, a GRU not at all."""
    return kind in ("GRU", "RNN") or (kind == "LSTM" and shapes[0][1] == 1)


def _moved_bytes(kind: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    written = sum(tensor.size_bytes for tensor in outputs)
    if kind in _VIEWS:
        return 0.0
    if kind in _GATHERS:
        indices = sum(tensor.size_bytes for tensor in inputs[1:])
        return 2.0 * written + indices
    return float(written + sum(tensor.size_bytes for tensor in inputs))


Count = Callable[[Attributes, Sequence[Tensor], Sequence[Tensor]], int]


def _convolution(weight: int, bias: int) -> Count:
    def count(_: Attributes, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
        out = outputs[0].elements
        with_bias = len(inputs) > bias and inputs[bias] is not ABSENT
        return 2 * out * prod(_shape(inputs[weight])[1:]) + out * with_bias

    return count


def _transposed_convolution(_: Attributes, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    with_bias = len(inputs) > 2 and inputs[2] is not ABSENT
    return 2 * inputs[0].elements * prod(_shape(inputs[1])[1:]) + outputs[0].elements * with_bias


def _gemm(attributes: Attributes, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    inner = _shape(inputs[0])[0 if attributes.get("transA") else 1]
    out = outputs[0].elements
    with_bias = len(inputs) > 2 and inputs[2] is not ABSENT
    return 2 * out * inner + out * with_bias


def _matmul(_: Attributes, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    return 2 * outputs[0].elements * _shape(inputs[0])[-1]


def _recurrent(kind: str) -> Count:
    def count(_: Attributes, inputs: Sequence[Tensor], __: Sequence[Tensor]) -> int:
        first, second, width = _shape(inputs[0])  # time steps and batch, in either order
        directions, _gates, hidden = _shape(inputs[2])
        gates = _GATES[kind]
        with_bias = len(inputs) > 3 and inputs[3] is not ABSENT
        per_step = 2 * gates * hidden * (width + hidden) + gates * hidden * with_bias + _POINTWISE[kind] * hidden
        return directions * first * second * per_step

    return count


def _pooling(attributes: Attributes, _: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    return outputs[0].elements * prod(attributes["kernel_shape"])


def _local_response(attributes: Attributes, inputs: Sequence[Tensor], _: Sequence[Tensor]) -> int:
    return inputs[0].elements * (2 * int(attributes["size"]) + 10)


def _per_output_element(operations: int) -> Count:
    return lambda _, __, outputs: operations * outputs[0].elements


def _per_input_element(operations: int) -> Count:
    return lambda _, inputs, __: operations * inputs[0].elements


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape or ()


_COUNTS: dict[str, Count] = {
    "Conv": _convolution(1, 2),
    "ConvInteger": _convolution(1, 4),  # has no bias
    "QLinearConv": _convolution(3, 8),
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "LRN": _local_response,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pooling),
    **{kind: _recurrent(kind) for kind in _GATES},
    **{kind: _per_input_element(operations) for kind, operations in _NORMALIZATIONS.items()},
    **dict.fromkeys(_ELEMENTWISE, _per_output_element(1)),
    **dict.fromkeys(_TRANSCENDENTAL, _per_output_element(10)),
    **dict.fromkeys(_REDUCTIONS, _per_input_element(1)),
    **dict.fromkeys((*_VIEWS, *_GATHERS, *_COPIES), _per_output_element(0)),
}
