"""Store weights of an ONNX file in int8; the runtime dequantizes them once, when it loads the model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from onefold.compression.fake_quantization import MAX_WEIGHT, MIN_SCALE

# The dimension of a weight that has one scale per output channel, and how many dimensions it has at least: biases of
# recurrent layers have fewer.
KERNELS = {"Conv": (0, 3), "ConvTranspose": (1, 3), "LSTM": (1, 3), "GRU": (1, 3), "RNN": (1, 3)}
MATRICES = {"MatMul": (1, 2), "Gemm": (1, 2), "Gather": (1, 2)}


def store_in_int8(model: Path, layers: Collection[str] | None = None) -> None:
    """Store fp32 weights in int8, in place: those of convolutions and recurrent layers, or of the layers named.

    Each weight is followed by a Cast and a Mul, which ONNX Runtime evaluates when it opens the model: the layers then
    run as fast as in fp32, with their weights rounded.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    content = onnx.load(str(model))
    graph = content.graph
    dimensions = {
        name: _channel_dimension(node)
        for node in graph.node
        if (node.op_type in KERNELS if layers is None else node.name in layers)
        for name in node.input
    }
    dequantize = []
    for tensor in list(graph.initializer):
        kept, least = dimensions.get(tensor.name, (0, 0))
        if not least or len(tensor.dims) < least or tensor.data_type != TensorProto.FLOAT:
            continue
        weight = numpy_helper.to_array(tensor)
        others = tuple(index for index in range(weight.ndim) if index != kept)
        scale = np.maximum(np.abs(weight).max(axis=others, keepdims=True) / MAX_WEIGHT, MIN_SCALE).astype(np.float32)
        name = tensor.name
        integers, floats, scales = f"{name}.int8", f"{name}.cast", f"{name}.scale"
        tensor.CopyFrom(numpy_helper.from_array(np.rint(weight / scale).astype(np.int8), integers))
        graph.initializer.append(numpy_helper.from_array(scale, scales))
        dequantize.append(helper.make_node("Cast", [integers], [floats], to=TensorProto.FLOAT))
        dequantize.append(helper.make_node("Mul", [floats, scales], [name]))
    nodes = [*dequantize, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    model.write_bytes(content.SerializeToString(deterministic=True))


def _channel_dimension(node: Any) -> tuple[int, int]:
    """Return the dimension of the output channels in the weight of a node, and the least number of dimensions."""
    kept, least = (KERNELS | MATRICES)[node.op_type]
    is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return (0 if is_transposed else kept), least
