"""Prepare weights that several ONNX nodes share for the quantizer of ONNX Runtime."""

from __future__ import annotations

from typing import Any

TRANSPOSED = "transB"  # the attribute of Gemm that transposes its weight


def transpose_shared_weights(model: Any) -> None:
    """Let no Gemm transpose a weight that other nodes read too, in place; outputs stay the same.

    The quantizer transposes the weights of each Gemm, and assumes that no other node reads them: a weight of two Gemm
    nodes would be transposed twice, and an embedding table that is also the output layer would be looked up by column.
    """
    import numpy as np
    from onnx import numpy_helper

    graph = model.graph
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for tensor in [tensor for tensor in graph.initializer if len(readers.get(tensor.name, ())) > 1]:
        transposing = [node for node in readers[tensor.name] if _transposes(node, tensor.name)]
        if not transposing:
            continue
        name = f"{tensor.name}.transposed"
        values = np.ascontiguousarray(numpy_helper.to_array(tensor).T)
        graph.initializer.append(numpy_helper.from_array(values, name))
        for node in transposing:
            node.input[1] = name
            next(attribute for attribute in node.attribute if attribute.name == TRANSPOSED).i = 0


def _transposes(node: Any, weight: str) -> bool:
    is_read = node.op_type == "Gemm" and node.input[1] == weight
    return is_read and any(attribute.name == TRANSPOSED and attribute.i for attribute in node.attribute)
