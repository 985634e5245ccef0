"""Groups of operators that a device runs at a similar speed; the probe measures an operator of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

# Their time follows from the operations; that of the others from the bytes that they move.
COMPUTE_GROUPS = frozenset({"matmul", "conv3x3", "conv1x1", "depthwise", "lstm"})
INT8 = "-int8"  # ends the name of a group of int8 operators
STREAM = "stream"  # not a group: the memory bandwidth of one core, in GB/s
_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}  # and the index of the weights
_PRODUCTS = frozenset({"Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"})
_EXAMPLES = {
    "add": "Add And Div Mod Mul Pow Sub Sum Where Concat",
    "maxpool": "AveragePool GlobalAveragePool GlobalMaxPool LpPool MaxPool",
    "softmax": """Elu Erf Exp Gelu LayerNormalization Log LogSoftmax Mish RMSNormalization ReduceMax ReduceMean
        ReduceSum Selu Sigmoid Softmax Softplus Sqrt Swish Tanh""",
    "lstm": "LSTM GRU RNN",
}
_GROUPS = {kind: group for group, kinds in _EXAMPLES.items() for kind in kinds.split()}
_FEW_ROWS = 4  # a product with as few rows is bound by reading the weights


def operator_group(
    kind: str, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]], output: Sequence[int], *, is_int8: bool
) -> str:
    """Return the group of an operator with these shapes of inputs and this shape of its first output."""
    if kind in _CONVOLUTIONS:
        group = _convolution(attributes, shapes[_CONVOLUTIONS[kind]])
    elif kind in _PRODUCTS:
        group = "gemm" if prod(output[:-1]) <= _FEW_ROWS else "matmul"
    else:
        return _GROUPS.get(kind, "relu")
    return group + INT8 if is_int8 else group


def _convolution(attributes: Mapping[str, Any], weights: Sequence[int]) -> str:
    if attributes.get("group", 1) > 1 and weights[1] == 1:
        return "depthwise"
    return "conv1x1" if prod(weights[2:]) == 1 else "conv3x3"


def without_int8(group: str) -> str:
    """Return the group of the same operators in floating point."""
    return group.removesuffix(INT8)
