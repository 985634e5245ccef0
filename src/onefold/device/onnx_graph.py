"""The operators of an ONNX file with their tensor shapes at one batch size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold.agent.inference_session import open_inference_session
from onefold.agent.random_inputs import DYNAMIC_SIZE
from onefold.device.operator_costs import ABSENT, Tensor
from onefold.processes import scratch_folder
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import ModelError

if TYPE_CHECKING:
    import onnx

_MAX_SHAPE_ELEMENTS = 1024  # shape inference may need constants up to this size; larger weights are dropped
Shapes = Mapping[str, Sequence[int]]  # of sample inputs, by the name of the input
NO_SHAPES: Shapes = {}
_ELIMINATED = {"Constant", "Identity", "Dropout"}  # removed by ONNX Runtime


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operator of the graph, with the shapes of its inputs and outputs."""

    name: str
    kind: str
    attributes: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    is_quantized: bool = False  # its first input was dequantized just before


def read_nodes(model: Path, batch_size: int, samples: Shapes = NO_SHAPES) -> list[GraphNode]:
    """Return the operators that run at inference, in topological order.

    A dynamic first dimension of an input is the batch, as is every dimension of the same name. Other dynamic dimensions
    are those of the samples, or 1 without samples, as when the model runs. Operators that depend on constants alone are
    folded before inference, so they are left out. Raises ModelError if the file is not an ONNX model.
    """
    import onnx

    try:
        loaded = onnx.load(str(model), load_external_data=False)
        fixed = _with_static_shapes(loaded, batch_size, samples)
        shaped = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    except FileNotFoundError:
        raise ModelError(f"there is no model {model}; give the path of an ONNX file") from None
    except Exception as error:  # protobuf and the onnx checker raise many types
        raise ModelError(f"{model} cannot be read as an ONNX model: {headline(error)}") from error
    tensors = _tensors(shaped.graph)
    if _has_unknown_shapes(shaped.graph, tensors):
        shaped, tensors = _with_folded_constants(fixed, shaped, tensors)
    weights = (*loaded.graph.initializer, *shaped.graph.initializer)
    return list(_runtime_nodes(shaped.graph, tensors, {weight.name for weight in weights}))


def _runtime_nodes(graph: onnx.GraphProto, tensors: Mapping[str, Tensor], constants: set[str]) -> Iterable[GraphNode]:
    import onnx

    constant = set(constants)  # grows by the outputs of operators whose inputs are all constant
    dequantized: set[str] = set()
    for node in graph.node:
        if all(name in constant or not name for name in node.input):
            constant.update(node.output)
            continue
        if node.op_type in _ELIMINATED:
            continue
        outputs = tuple(name for name in node.output if name)
        if node.op_type == "DequantizeLinear":
            dequantized.update(outputs)
        yield GraphNode(
            name=node.name or f"{node.op_type}:{outputs[0] if outputs else ''}",
            kind=node.op_type,
            attributes={attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute},
            inputs=tuple(tensors.get(name, Tensor(None, 0)) if name else ABSENT for name in node.input),
            outputs=tuple(tensors.get(name, Tensor(None, 0)) for name in outputs),
            is_quantized=bool(node.input) and node.input[0] in dequantized,
        )


def _with_static_shapes(model: onnx.ModelProto, batch_size: int, samples: Shapes) -> onnx.ModelProto:
    """Return a copy with static input shapes, whose large weights are inputs without values."""
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    shapes = [value.type.tensor_type.shape for value in graph.input]
    batch = {shape.dim[0].dim_param for shape in shapes if shape.dim and not shape.dim[0].HasField("dim_value")}
    for value, shape in zip(graph.input, shapes):
        sample = samples.get(value.name, ())
        for axis, dim in enumerate(shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 1:
                continue
            if axis == 0 or (dim.dim_param and dim.dim_param in batch):
                dim.dim_value = batch_size
            else:
                dim.dim_value = sample[axis] if axis < len(sample) else DYNAMIC_SIZE
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    inputs = {value.name for value in graph.input}
    small = []
    for weight in graph.initializer:
        if Tensor(tuple(weight.dims), 1).elements <= _MAX_SHAPE_ELEMENTS and not weight.external_data:
            small.append(weight)
        elif weight.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    del graph.initializer[:]
    graph.initializer.extend(small)
    return fixed


def _with_folded_constants(
    fixed: onnx.ModelProto, shaped: onnx.ModelProto, tensors: dict[str, Tensor]
) -> tuple[onnx.ModelProto, dict[str, Tensor]]:
    """Return the graph after constant folding by ONNX Runtime; the graph unchanged if that fails."""
    import onnx
    import onnxruntime

    with scratch_folder() as folder:
        path = folder / "folded.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            open_inference_session(fixed.SerializeToString(), options)
            folded = onnx.shape_inference.infer_shapes(onnx.load(str(path)), data_prop=True)
        except Exception:  # noqa: BLE001 - continue with the shapes known without folding
            return shaped, tensors
    return folded, _tensors(folded.graph)


def _tensors(graph: onnx.GraphProto) -> dict[str, Tensor]:
    tensors = {weight.name: Tensor(tuple(weight.dims), _item_bytes(weight.data_type)) for weight in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        is_static = kind.HasField("shape") and None not in dims
        tensors[value.name] = Tensor(
            tuple(dim or 0 for dim in dims) if is_static else None, _item_bytes(kind.elem_type)
        )
    for node in graph.node:  # value_info does not list the outputs of Constant nodes
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constant = node.attribute[0].t
            tensors[node.output[0]] = Tensor(tuple(constant.dims), _item_bytes(constant.data_type))
    return tensors


def _has_unknown_shapes(graph: onnx.GraphProto, tensors: Mapping[str, Tensor]) -> bool:
    return any(name and tensors.get(name, Tensor(None, 0)).shape is None for node in graph.node for name in node.output)


def _item_bytes(kind: int) -> int:
    import onnx

    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except (KeyError, TypeError):  # strings and undefined types
        return 0
