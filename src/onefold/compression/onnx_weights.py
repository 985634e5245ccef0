"""Inspect the weights of an ONNX file: sparsity, density per operator, layers in full precision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Gather")
INTEGER_WEIGHTED = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM")


def full_precision_layers(model: Path) -> tuple[str, ...]:
    """Return the operators, as "type name", whose weights are 32-bit floating-point numbers."""
    import onnx
    from onnx import TensorProto

    graph = onnx.load(str(model)).graph
    exact = {
        tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) > 1
    }
    return tuple(
        f"{node.op_type} {node.name}".strip()
        for node in graph.node
        if node.op_type in WEIGHTED and any(name in exact for name in node.input)
    )


def weight_sparsity(model: Path) -> float:
    """Return the share of weights that are zero, over all tensors with two or more dimensions."""
    import onnx
    from onnx import numpy_helper

    zeros = count = 0
    for tensor in onnx.load(str(model)).graph.initializer:
        if len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor)
            zeros, count = zeros + int((values == 0).sum()), count + values.size
    return zeros / count if count else 0.0


def operator_density(model: Path) -> Mapping[str, float]:
    """Return the share of nonzero weights by operator name; operators without weights are left out."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(model)).graph
    weights = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) > 1}
    casts = {node.output[0]: node.input[0] for node in graph.node if node.op_type in ("DequantizeLinear", "Cast")}
    density = {}
    for node in graph.node:
        read = [weights[name] for name in (casts.get(name, name) for name in node.input) if name in weights]
        if node.op_type in (*WEIGHTED, *INTEGER_WEIGHTED) and read:
            values = [numpy_helper.to_array(tensor) for tensor in read]
            nonzero = sum(int(np.count_nonzero(array)) for array in values)
            density[node.name or f"{node.op_type}:{node.output[0]}"] = nonzero / sum(array.size for array in values)
    return density
