"""What an architecture is, for serving: its graph and the shapes of its weights, but not their values."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onefold.vocabulary.errors import ModelError

FEW = 64  # whole numbers in a constant of so few are shapes and axes, which change the cost
BOOKKEEPING = {  # of shapes and first states: next to no work
    "Shape", "Constant", "Gather", "Unsqueeze", "Squeeze", "Concat", "ConstantOfShape", "Expand", "Reshape", "Identity",
    "Cast", "Slice",
}  # fmt: skip


def read(path: Path) -> Any:
    """The ONNX model of a file."""
    import onnx

    if not path.is_file():
        raise ModelError(f"there is no model {path}; give the path of an ONNX file")
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf and the checker raise many kinds
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{path} is not an ONNX model that can be read: {first}") from error
    return model


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is read from a model's file before anything is timed.

    The signature is equal for two models that cost the same to serve, whatever their weights. It covers the operators
    with their attributes, how they are connected, the kinds and shapes of inputs and weights, and small constants of
    whole numbers. Names, weights and training settings are left out.
    """

    signature: str
    parameters: int  # how many numbers its weights are
    branches: bool  # whether two of its operators could ever run side by side
    batch_size: int | None = None  # the only one that it takes, where its first dimension is not open
    open_dimensions: tuple[str, ...] = ()  # other than the first, as `input name[dimension]`


def architecture(path: Path) -> Architecture:
    """The architecture in an ONNX file."""
    graph = read(path).graph
    described = json.dumps(_described(graph), sort_keys=True)
    return Architecture(
        hashlib.sha256(described.encode()).hexdigest()[:32],
        sum(math.prod(weights.dims) for weights in graph.initializer),
        _has_branches(graph),
        *_openness(graph),
    )


def _openness(graph: Any) -> tuple[int | None, tuple[str, ...]]:
    weights = {each.name for each in graph.initializer}
    batch_size, others = None, []
    for each in graph.input:
        dims = each.type.tensor_type.shape.dim
        if each.name in weights or not dims:
            continue
        batch_size = dims[0].dim_value or batch_size
        others += [
            f"{each.name}[{dim.dim_param or place}]" for place, dim in enumerate(dims) if place and not dim.dim_value
        ]
    return batch_size, tuple(others)


def _described(graph: Any) -> Any:
    places: dict[str, int] = {}

    def place(name: str) -> int:
        return places.setdefault(name, len(places)) if name else -1

    inputs = [[place(each.name), _shape(each)] for each in graph.input]
    weights = [[place(each.name), each.data_type, list(each.dims), _small(each)] for each in graph.initializer]
    nodes = [
        [
            node.domain,
            node.op_type,
            [place(name) for name in node.input],
            [place(name) for name in node.output],
            sorted([attribute.name, _attribute(attribute)] for attribute in node.attribute),
        ]
        for node in graph.node
    ]
    return {
        "inputs": inputs,
        "weights": weights,
        "nodes": nodes,
        "outputs": [place(each.name) for each in graph.output],
    }


def _has_branches(graph: Any) -> bool:
    """Operators come in an order in which they can be run. When each needs the one before it, there is no other."""
    behind: dict[str, int] = {}  # by name of a value: the operators that it comes from, a bit each
    count = 0
    for node in graph.node:
        mine = 0
        for name in node.input:
            mine |= behind.get(name, 0)
        if node.op_type not in BOOKKEEPING:
            if count and not mine >> (count - 1) & 1:
                return True
            mine |= 1 << count
            count += 1
        behind |= dict.fromkeys(node.output, mine)
    return False


def _shape(value: Any) -> Any:
    kind = value.type.tensor_type
    return [kind.elem_type, [dim.dim_value or "batch" for dim in kind.shape.dim]]


def _small(tensor: Any) -> Any:
    """The values of a small constant of whole numbers; None for weights."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_type not in (TensorProto.INT64, TensorProto.INT32) or math.prod(tensor.dims) > FEW:
        return None
    return numpy_helper.to_array(tensor).tolist()


def _attribute(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return [value.data_type, list(value.dims), _small(value)]
    if isinstance(value, onnx.GraphProto):
        return _described(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (str, int, float)):
        return value
    return [each.decode(errors="replace") if isinstance(each, bytes) else each for each in value]
