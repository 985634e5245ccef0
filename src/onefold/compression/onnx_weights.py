"""Inspect the weights of an ONNX file: sparsity, density per operator, layers in full precision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onefold.compression.onnx_weight_blocks import OPERATOR, block_integers

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Gather")
WEIGHT_INPUTS = 3  # the fourth input of recurrent operators is their bias
INTEGER_WEIGHTED = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM")

DYNAMIC_RANGES = ("DynamicQuantizeLinear", "DynamicQuantizeLSTM")


def weighted_operators(model: Path) -> dict[str, str]:
    """Return the operators whose weights are 32-bit floating-point numbers: their types, by name."""
    import onnx
    from onnx import TensorProto

    graph = onnx.load(str(model)).graph
    exact = {
        tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) > 1
    }
    return {
        node.name: node.op_type
        for node in graph.node
        if node.op_type in WEIGHTED and any(name in exact for name in node.input[:WEIGHT_INPUTS])
    }


def full_precision_layers(model: Path) -> tuple[str, ...]:
    """Return the operators, as "type name", whose weights are 32-bit floating-point numbers."""
    return tuple(f"{kind} {name}".strip() for name, kind in weighted_operators(model).items())


def has_dynamic_ranges(model: Path) -> bool:
    """Return whether activations are quantized with their range in each batch, on which outputs then depend."""
    import onnx

    return any(node.op_type in DYNAMIC_RANGES for node in onnx.load(str(model), load_external_data=False).graph.node)


def weight_sparsity(model: Path) -> float:
    """Return the share of weights that are zero, over all tensors with two or more dimensions."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(model)).graph
    packed = {node.input[1]: node for node in graph.node if node.op_type == OPERATOR}
    zeros = count = 0
    for tensor in graph.initializer:
        if len(tensor.dims) > 1:
            values = numpy_helper.to_array(tensor)
            if tensor.name in packed:
                values = block_integers(packed[tensor.name], values)
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
