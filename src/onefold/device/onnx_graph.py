"""An ONNX file as its operators with the shapes that they have at one batch size."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.device.operator_costs import ABSENT, Tensor
from onefold.vocabulary.errors import ModelError

if TYPE_CHECKING:
    import onnx

_SMALL = 1024  # elements: what may be a shape that a shape is worked out from; larger weights are left out
_NEVER_RUN = {"Constant", "Identity", "Dropout"}  # ONNX Runtime takes them out


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph, with the shapes of what it reads and writes."""

    name: str
    kind: str
    attributes: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def read_nodes(model: Path, batch_size: int) -> list[Node]:
    """The operators that run, in the order of the file.

    An open first dimension of an input is the batch, and so is every other of the same name; further open ones are 1.
    What depends on weights alone is worked out before the model runs, so it is not among them. ModelError when the
    file is no model.
    """
    import onnx

    try:
        found = onnx.load(str(model), load_external_data=False)
        fixed = _with_batch(found, batch_size)
        shaped = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    except FileNotFoundError:
        raise ModelError(f"there is no model {model}; give the path of an ONNX file") from None
    except Exception as error:  # onnx raises what protobuf and its checker raise
        raise ModelError(f"{model} cannot be read as an ONNX model: {_first_line(error)}") from error
    tensors = _tensors(shaped.graph)
    if _open_shapes(shaped.graph, tensors):
        shaped, tensors = _folded(fixed, shaped, tensors)
    constants = {one.name for one in found.graph.initializer} | {one.name for one in shaped.graph.initializer}
    return list(_running(shaped.graph, tensors, constants))


def _running(graph: onnx.GraphProto, tensors: Mapping[str, Tensor], constants: set[str]) -> Iterable[Node]:
    import onnx

    known = set(constants)  # grows by what depends on nothing else
    for node in graph.node:
        if all(name in known or not name for name in node.input):
            known.update(node.output)
            continue
        if node.op_type in _NEVER_RUN:
            continue
        written = tuple(name for name in node.output if name)
        yield Node(
            name=node.name or f"{node.op_type}:{written[0] if written else ''}",
            kind=node.op_type,
            attributes={each.name: onnx.helper.get_attribute_value(each) for each in node.attribute},
            inputs=tuple(tensors.get(name, Tensor(None, 0)) if name else ABSENT for name in node.input),
            outputs=tuple(tensors.get(name, Tensor(None, 0)) for name in written),
        )


def _with_batch(model: onnx.ModelProto, batch_size: int) -> onnx.ModelProto:
    """A copy with every dimension of the inputs fixed, and with large weights as mere shapes."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    shapes = [each.type.tensor_type.shape for each in graph.input]
    batch = {shape.dim[0].dim_param for shape in shapes if shape.dim and not shape.dim[0].HasField("dim_value")}
    for shape in shapes:
        for place, dim in enumerate(shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 1:
                dim.dim_value = batch_size if place == 0 or (dim.dim_param and dim.dim_param in batch) else 1
    del graph.value_info[:]
    for each in graph.output:
        each.type.tensor_type.ClearField("shape")
    named = {each.name for each in graph.input}
    small = []
    for weight in graph.initializer:
        if Tensor(tuple(weight.dims), 1).elements <= _SMALL and not weight.external_data:
            small.append(weight)
        elif weight.name not in named:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    del graph.initializer[:]
    graph.initializer.extend(small)
    return fixed


def _folded(
    fixed: onnx.ModelProto, shaped: onnx.ModelProto, tensors: dict[str, Tensor]
) -> tuple[onnx.ModelProto, dict[str, Tensor]]:
    """The graph as ONNX Runtime has it once it worked out what depends on shapes alone; as it is if that fails."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(fixed.SerializeToString(), options, providers=["CPUExecutionProvider"])
            folded = onnx.shape_inference.infer_shapes(onnx.load(str(path)), data_prop=True)
        except Exception:  # noqa: BLE001 - the shapes that are known without it will have to do
            return shaped, tensors
    return folded, _tensors(folded.graph)


def _tensors(graph: onnx.GraphProto) -> dict[str, Tensor]:
    found = {one.name: Tensor(tuple(one.dims), _item_bytes(one.data_type)) for one in graph.initializer}
    for each in (*graph.input, *graph.output, *graph.value_info):
        kind = each.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        whole = kind.HasField("shape") and None not in dims
        found[each.name] = Tensor(tuple(dim or 0 for dim in dims) if whole else None, _item_bytes(kind.elem_type))
    for node in graph.node:  # the shapes of these are in no list
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            value = node.attribute[0].t
            found[node.output[0]] = Tensor(tuple(value.dims), _item_bytes(value.data_type))
    return found


def _open_shapes(graph: onnx.GraphProto, tensors: Mapping[str, Tensor]) -> bool:
    return any(name and tensors.get(name, Tensor(None, 0)).shape is None for node in graph.node for name in node.output)


def _item_bytes(kind: int) -> int:
    import onnx

    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except (KeyError, TypeError):  # texts and undefined ones
        return 0


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
