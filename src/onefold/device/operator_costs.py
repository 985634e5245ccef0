"""What one operator of a network has to do: fp32 operations, and bytes between processor and memory.

A multiplication and an addition are two operations. Additions, comparisons and the like count one for each element;
exponentials and their kin ten, which is about what a vectorised one takes. Operations on int8 count like those on fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape of a tensor and the bytes of each of its elements; shape None when it is not known."""

    shape: tuple[int, ...] | None
    item_bytes: int

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return 0 if self.shape is None else prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return self.elements * self.item_bytes


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator has to do. `unknown`: its kind or its shapes are not known, and only known bytes count."""

    flops: float
    moved_bytes: float
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """What one operator of a model has to do at one batch size."""

    name: str
    kind: str
    flops: float
    moved_bytes: float  # inputs, weights and outputs, each once
    unknown: bool = False  # its kind or its shapes are not known: only the bytes that are known count


def _kinds(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ABSENT = Tensor((), 0)  # an optional input that is left out

_SIMPLE = _kinds("""
    Abs Add And BitShift Ceil Celu Clip Div Equal Floor Greater GreaterOrEqual HardSigmoid HardSwish LeakyRelu Less
    LessOrEqual Max Mean Min Mod Mul Neg Not Or PRelu Reciprocal Relu Round Sign Sub Sum ThresholdedRelu Where Xor
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear IsNaN IsInf
""")
_CURVED = _kinds("""
    Acos Acosh Asin Asinh Atan Atanh Cos Cosh Elu Erf Exp Gelu Log Mish Pow Selu Sigmoid Sin Sinh Softplus Softsign
    Sqrt Swish Tan Tanh
""")
_REDUCING = _kinds("""
    ArgMax ArgMin CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK
""")
_VIEWING = _kinds("Flatten Reshape Shape Size Squeeze Unsqueeze")
_PICKING = _kinds("Gather GatherElements GatherND Slice Split")  # touch what they give, not all they are given
_MOVING = _kinds("""
    Cast CastLike Concat ConstantOfShape DepthToSpace Expand EyeLike OneHot Pad Range Resize ReverseSequence
    ScatterElements ScatterND SpaceToDepth Tile Transpose Trilu Upsample Compress NonZero
""")
_NORMALISING = {  # operations for each element: means, variances, roots, scales and shifts
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
# For each hidden unit and step, besides the matrices: activations at ten each, then products and sums.
_POINTWISE = {"LSTM": 5 * 10 + 4, "GRU": 3 * 10 + 5, "RNN": 10}


def work_of(kind: str, attributes: Attributes, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Work:
    """What an operator of this ONNX kind has to do on tensors of these shapes."""
    moved = _moved_bytes(kind, inputs, outputs)
    count = _COUNTS.get(kind)
    if count is None or any(tensor.shape is None for tensor in (*inputs, *outputs)):
        return Work(0.0, moved, unknown=True)
    try:
        return Work(float(count(attributes, inputs, outputs)), moved)
    except (IndexError, KeyError, TypeError):  # not the inputs that the standard asks for
        return Work(0.0, moved, unknown=True)


def _moved_bytes(kind: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    written = sum(tensor.size_bytes for tensor in outputs)
    if kind in _VIEWING:
        return 0.0
    if kind in _PICKING:
        places = sum(tensor.size_bytes for tensor in inputs[1:])
        return 2.0 * written + places
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
        first, second, width = _shape(inputs[0])  # steps and batch, in either order
        directions, _gates, hidden = _shape(inputs[2])
        gates = _GATES[kind]
        with_bias = len(inputs) > 3 and inputs[3] is not ABSENT
        each = 2 * gates * hidden * (width + hidden) + gates * hidden * with_bias + _POINTWISE[kind] * hidden
        return directions * first * second * each

    return count


def _pooling(attributes: Attributes, _: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    return outputs[0].elements * prod(attributes["kernel_shape"])


def _local_response(attributes: Attributes, inputs: Sequence[Tensor], _: Sequence[Tensor]) -> int:
    return inputs[0].elements * (2 * int(attributes["size"]) + 10)


def _for_each_output(operations: int) -> Count:
    return lambda _, __, outputs: operations * outputs[0].elements


def _for_each_input(operations: int) -> Count:
    return lambda _, inputs, __: operations * inputs[0].elements


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape or ()


_COUNTS: dict[str, Count] = {
    "Conv": _convolution(1, 2),
    "ConvInteger": _convolution(1, 4),  # it has no bias
    "QLinearConv": _convolution(3, 8),
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "LRN": _local_response,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pooling),
    **{kind: _recurrent(kind) for kind in _GATES},
    **{kind: _for_each_input(operations) for kind, operations in _NORMALISING.items()},
    **dict.fromkeys(_SIMPLE, _for_each_output(1)),
    **dict.fromkeys(_CURVED, _for_each_output(10)),
    **dict.fromkeys(_REDUCING, _for_each_input(1)),
    **dict.fromkeys((*_VIEWING, *_PICKING, *_MOVING), _for_each_output(0)),
}
