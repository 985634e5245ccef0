"""Store the weights of large linear layers of an ONNX graph in 4 or 8 bits, one scale per block, for MatMulNBits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

INT4, INT8 = 4, 8
# Weights per scale, the first that divides the inputs of a layer: 8 bits need fewer scales than 4.
BLOCK_SIZES = {INT4: (32,), INT8: (128, 64, 32)}
MIN_WEIGHTS = 4096  # elements; of smaller layers, the scales and the operator cost more than they save
INT8_ACCUMULATION = 4  # the accuracy level that multiplies in int8: without it, 8 bits are up to 20 times slower
DOMAIN = "com.microsoft"
OPERATOR = "MatMulNBits"


def large_linear_layers(model: Any) -> list[str]:
    """Return the names of the MatMul and Gemm nodes with a constant weight that is large enough for MatMulNBits."""
    return [node.name for node in model.graph.node if _weight(node, _matrices(model)) is not None]


def quantize_linear_layers(model: Any, bits: Mapping[str, int]) -> None:
    """Replace nodes that `large_linear_layers` has named by MatMulNBits with this number of bits each, in place."""
    from onnx import helper, numpy_helper

    graph, matrices = model.graph, _matrices(model)
    nodes: list[Any] = []
    for node in graph.node:
        if node.name not in bits:
            nodes.append(node)
            continue
        values = numpy_helper.to_array(_weight(node, matrices))
        rows = values if _transposes_weight(node) else values.T  # one per output
        width = bits[node.name]
        block = next((size for size in BLOCK_SIZES[width] if rows.shape[1] % size == 0), BLOCK_SIZES[width][-1])
        packed, scales = _quantized(np.ascontiguousarray(rows, np.float32), width, block)
        names = [f"{node.name}.int{width}", f"{node.name}.scales"]
        graph.initializer.extend((numpy_helper.from_array(packed, names[0]), numpy_helper.from_array(scales, names[1])))
        bias = list(node.input[2:])
        product = f"{node.output[0]}.product" if bias else node.output[0]
        nodes.append(
            helper.make_node(
                OPERATOR, [node.input[0], *names], [product], name=node.name, domain=DOMAIN, K=rows.shape[1],
                N=rows.shape[0], bits=width, block_size=block, accuracy_level=INT8_ACCUMULATION,
            )
        )  # fmt: skip
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], list(node.output), name=f"{node.name}.bias"))
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in graph.node for name in node.input}
    for weight in [weight for name, weight in matrices.items() if name not in read]:
        graph.initializer.remove(weight)
    if DOMAIN not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def block_integers(node: Any, values: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Return the integers that a MatMulNBits node stores, as signed numbers."""
    if next(attribute.i for attribute in node.attribute if attribute.name == "bits") == INT4:
        values = np.stack([values % 2**INT4, values >> INT4], axis=-1)
        return values.astype(np.int16) - np.int16(_zero_point(INT4))
    return values.astype(np.int16) - np.int16(_zero_point(INT8))


def _matrices(model: Any) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) == 2}


def _weight(node: Any, matrices: Mapping[str, Any]) -> Any:
    """Return the weight of a linear layer that MatMulNBits can compute; None for another node."""
    weight = matrices.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
    if weight is None or _transposes_weight(node) is None or np.prod(weight.dims) < MIN_WEIGHTS:
        return None
    return weight


def _transposes_weight(node: Any) -> bool | None:
    """Return whether a MatMul or Gemm transposes its weight; None if it does more than a MatMul and an Add."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    is_scaled = any(attributes[name].f != 1.0 for name in ("alpha", "beta") if name in attributes)
    if is_scaled or ("transA" in attributes and attributes["transA"].i):
        return None
    return "transB" in attributes and bool(attributes["transB"].i)


def _quantized(rows: NDArray[np.float32], bits: int, block: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return weights as MatMulNBits reads them, two values per byte in 4 bits, and the scale of each block."""
    outputs, inputs = rows.shape
    blocks = -(-inputs // block)
    padded = np.zeros((outputs, blocks * block), np.float32)
    padded[:, :inputs] = rows
    grouped = padded.reshape(outputs, blocks, block)
    largest = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)
    zero_point = _zero_point(bits)
    scales = largest / -zero_point  # the largest value becomes 0 in integers; the scale may be negative
    integers = np.rint(np.divide(grouped, scales, out=np.zeros_like(grouped), where=scales != 0)) + zero_point
    stored: NDArray[np.uint8] = integers.clip(0, 2**bits - 1).astype(np.uint8)
    if bits == INT4:
        stored = stored[..., 0::2] | np.left_shift(stored[..., 1::2], np.uint8(INT4))
    return stored, scales.ravel().astype(np.float32)


def _zero_point(bits: int) -> int:
    return 1 << (bits - 1)
