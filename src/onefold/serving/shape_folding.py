"""Replace the computation of shapes in an ONNX graph by constants, wherever they depend on nothing but the batch size.

A traced `nn.MultiheadAttention` has a hundred such operators, which take longer than its products at batch size 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.agent.inference_session import open_inference_session

PROBED_BATCH_SIZES = (1, 2, 3)
MAX_ELEMENTS = 1024  # of a constant
SOURCES = ("Shape", "Size")
PURE = (
    "Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Floor", "Gather", "Identity", "Max", "Min", "Mod",
    "Mul", "Neg", "Pow", "Range", "Reshape", "Slice", "Sqrt", "Squeeze", "Sub", "Unsqueeze", "Where",
)  # fmt: skip
# The shape of their outputs depends on the data; of the others, on the values of inputs from this one on.
UNPREDICTABLE = ("Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "StringSplit", "Unique")
SHAPED_BY = {
    "ConstantOfShape": 0, "Expand": 1, "OneHot": 1, "Pad": 1, "Range": 0, "Reshape": 1, "Resize": 1, "Slice": 1,
    "Split": 1, "Tile": 1, "TopK": 1, "Upsample": 1,
}  # fmt: skip


def fold_shapes(model: Path, inputs: Mapping[str, NDArray[Any]]) -> None:
    """Fold the shapes of a model with a dynamic batch dimension, in place; `inputs` are samples by input."""
    import onnx

    content = onnx.load(str(model))
    graph = content.graph
    computed, constant = _computed_from_shapes(graph)
    if not _has_predictable_shapes(graph, computed | constant):
        return
    read = [node for node in graph.node if not computed.issuperset(node.output)]
    wanted = list(dict.fromkeys(name for node in read for name in node.input if name in computed))
    if not wanted:
        return
    reshaped = {node.input[1] for node in read if node.op_type == "Reshape"}
    others = {name for node in read for i, name in enumerate(node.input) if (node.op_type, i) != ("Reshape", 1)}
    try:
        probed = _probed(content, wanted, inputs)
    except Exception:  # noqa: BLE001 - a model that runs at one batch size alone raises what ONNX Runtime raises
        return
    constants = {}
    for name, values in probed.items():
        folded = _folded(values, is_shape_of_reshape=name in reshaped - others)
        if folded is not None:
            constants[name] = folded
    if constants:
        _replace(graph, constants)
        model.write_bytes(content.SerializeToString())


def _computed_from_shapes(graph: Any) -> tuple[set[str], set[str]]:
    """Return the values that are computed from shapes and constants alone, and the constants."""
    constant = {tensor.name for tensor in graph.initializer} | {""}
    computed: set[str] = set()
    for node in graph.node:  # in topological order
        if node.op_type == "Constant" or (node.op_type in PURE and constant.issuperset(node.input)):
            constant.update(node.output)
        elif node.op_type in SOURCES or (node.op_type in PURE and (constant | computed).issuperset(node.input)):
            computed.update(node.output)
    return computed, constant


def _has_predictable_shapes(graph: Any, known: set[str]) -> bool:
    """Return whether all shapes follow from those of the inputs."""
    return not any(
        node.op_type in UNPREDICTABLE
        or not known.issuperset(node.input[SHAPED_BY.get(node.op_type, len(node.input)) :])
        for node in graph.node
    )


def _probed(content: Any, names: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, list[NDArray[Any]]]:
    """Return the values at several batch sizes."""
    import onnx
    import onnxruntime

    probe = onnx.ModelProto()
    probe.CopyFrom(content)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = open_inference_session(probe.SerializeToString(), options)
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for batch_size in PROBED_BATCH_SIZES:
        batch = {name: np.resize(values, (batch_size, *values.shape[1:])) for name, values in inputs.items()}
        for name, values in zip(names, session.run(names, batch)):
            found[name].append(np.asarray(values))
    return found


def _folded(values: Sequence[NDArray[Any]], *, is_shape_of_reshape: bool) -> NDArray[Any] | None:
    """Return the constant that a value can be replaced by; None if it varies with the batch size."""
    first = values[0]
    if first.size > MAX_ELEMENTS or any(each.shape != first.shape for each in values):
        return None
    varies = np.any([each != first for each in values], axis=0)
    if not varies.any():
        return first
    if is_shape_of_reshape and varies.sum() == 1 and (first[~varies] > 0).all():
        return np.where(varies, np.int64(-1), first)  # which Reshape infers from the number of elements
    return None


def _replace(graph: Any, constants: Mapping[str, NDArray[Any]]) -> None:
    """Let nodes read the constants, and remove those whose outputs nothing reads any more."""
    from onnx import helper, numpy_helper

    nodes: list[Any] = []
    needed = {output.name for output in graph.output}
    for node in reversed(graph.node):
        kept = [name for name in node.output if name in needed]
        if kept and not all(name in constants for name in kept):
            nodes.append(node)
            needed.update(node.input)
    # Nodes instead of initializers, so that the floating-point initializers of a file are its weights.
    folded = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))
        for name, values in constants.items()
        if name in needed
    ]
    del graph.node[:]
    graph.node.extend([*folded, *reversed(nodes)])
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in needed]:
        graph.initializer.remove(tensor)
    del graph.value_info[:]
