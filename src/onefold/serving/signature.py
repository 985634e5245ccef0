"""The signature of an architecture: a hash of its graph and the shapes of its weights, without their values."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onefold.runtimes.forms import form_of, read_about
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.quantities import size

MAX_ONNX_BYTES = 2**31  # the limit of protocol buffers
MAX_SHAPE_ELEMENTS = 64  # integer constants up to this size are shapes and axes, which change the cost
BOOKKEEPING = {  # operators on shapes and initial states, at negligible cost
    "Shape", "Constant", "Gather", "Unsqueeze", "Squeeze", "Concat", "ConstantOfShape", "Expand", "Reshape", "Identity",
    "Cast", "Slice",
}  # fmt: skip


def read(path: Path) -> Any:
    """Return the ONNX model of a file. Raises ModelError if there is none or it is invalid."""
    import onnx

    check_file(path)
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf and the checker raise many types
        raise ModelError(f"{path} is not a valid ONNX model: {headline(error)}") from error
    return model


def check_file(path: Path) -> None:
    """Raise ModelError unless a path is that of a regular file, no larger than an ONNX file may be."""
    if not path.is_file():
        raise ModelError(f"there is no model {path}; give the path of an ONNX file")
    if path.stat().st_size > MAX_ONNX_BYTES:
        raise ModelError(
            f"{path} has {size(path.stat().st_size)}, but an ONNX file has at most 2 GiB; export the weights as "
            "external data"
        )


@dataclass(frozen=True, slots=True)
class Architecture:
    """The properties of a model that are read from its file.

    Two models with the same signature cost the same to serve, whatever their weights. The signature covers the
    operators with their attributes and connections, the types and shapes of inputs and weights, and small integer
    constants; not names, weights and training settings.
    """

    signature: str
    parameters: int
    branches: bool  # whether any two operators could run in parallel
    batch_size: int | None = None  # None if the batch dimension is dynamic
    open_dimensions: tuple[str, ...] = ()  # other dynamic dimensions, as `input name[dimension]`
    why_not_onnx: str = ""  # why the network is served by PyTorch itself


def architecture(path: Path) -> Architecture:
    """Return the architecture in an ONNX file or in a program of PyTorch. Raises ModelError if it is invalid."""
    if path.suffix == ".pt":
        return _architecture_of_program(path)
    graph = read(path).graph
    described = json.dumps(_describe(graph), sort_keys=True)
    return Architecture(
        hashlib.sha256(described.encode()).hexdigest()[:32],
        sum(math.prod(weights.dims) for weights in graph.initializer),
        _has_branches(graph),
        *_dynamic_dimensions(graph),
    )


def _architecture_of_program(path: Path) -> Architecture:
    """Return the architecture of a program, which was described when it was exported."""
    form = form_of(path, "pytorch")
    about = read_about(path).get("architecture")
    if form is None or not isinstance(about, dict):
        raise ModelError(f"{path} has no description beside it; copy the whole folder")
    reason, parameters = str(about.get("reason", "")), int(about.get("parameters", 0))
    return Architecture(str(about.get("signature")), parameters, False, form.batch_size, why_not_onnx=reason)


def _dynamic_dimensions(graph: Any) -> tuple[int | None, tuple[str, ...]]:
    """Return the fixed batch size, if any, and the names of the other dynamic dimensions."""
    weights = {weight.name for weight in graph.initializer}
    batch_size, others = None, []
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in weights or not dims:
            continue
        batch_size = dims[0].dim_value or batch_size
        others += [
            f"{value.name}[{dim.dim_param or axis}]" for axis, dim in enumerate(dims) if axis and not dim.dim_value
        ]
    return batch_size, tuple(others)


def _describe(graph: Any) -> Any:
    """Return a JSON value that is equal for graphs of equal cost; names are replaced by their order of appearance."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers)) if name else -1

    inputs = [[number(value.name), _shape(value)] for value in graph.input]
    weights = [
        [number(weight.name), weight.data_type, list(weight.dims), _shape_constant(weight)]
        for weight in graph.initializer
    ]
    nodes = [
        [
            node.domain,
            node.op_type,
            [number(name) for name in node.input],
            [number(name) for name in node.output],
            sorted([attribute.name, _attribute(attribute)] for attribute in node.attribute),
        ]
        for node in graph.node
    ]
    return {
        "inputs": inputs,
        "weights": weights,
        "nodes": nodes,
        "outputs": [number(value.name) for value in graph.output],
    }


def _has_branches(graph: Any) -> bool:
    """Return whether the graph has no unique topological order, so that operators can run in parallel.

    The nodes are in topological order; it is the only one if each operator depends on the one before it.
    """
    ancestors: dict[str, int] = {}  # by name of a value: the operators that it depends on, as a bit set
    count = 0
    for node in graph.node:
        depends_on = 0
        for name in node.input:
            depends_on |= ancestors.get(name, 0)
        if node.op_type not in BOOKKEEPING:
            if count and not depends_on >> (count - 1) & 1:
                return True
            depends_on |= 1 << count
            count += 1
        ancestors |= dict.fromkeys(node.output, depends_on)
    return False


def _shape(value: Any) -> Any:
    kind = value.type.tensor_type
    return [kind.elem_type, [dim.dim_value or "batch" for dim in kind.shape.dim]]


def _shape_constant(tensor: Any) -> Any:
    """Return the values of a small integer constant; None for weights."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_type not in (TensorProto.INT64, TensorProto.INT32) or math.prod(tensor.dims) > MAX_SHAPE_ELEMENTS:
        return None
    return numpy_helper.to_array(tensor).tolist()


def _attribute(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return [value.data_type, list(value.dims), _shape_constant(value)]
    if isinstance(value, onnx.GraphProto):
        return _describe(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (str, int, float)):
        return value
    return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in value]
