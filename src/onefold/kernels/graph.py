"""Imports an ONNX model into TVM's Relax and optimizes the graph by level.

0   one operator per node
1   operator fusion, dead code elimination
2   constant folding
3   NHWC layout for convolutions, common subexpression elimination
4   parallel matrix products combined, fast approximations of exp, tanh and erf: outputs may differ in the last digits
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from onefold.kernels.targets import Target
from onefold.kernels.toolchain import tvm
from onefold.vocabulary.errors import InputError, ModelError
from onefold.vocabulary.kernels import DEFAULT_GRAPH_LEVEL

CONVOLUTION = "relax.nn.conv2d"
# TVM would convert transposed convolutions along with their neighbors, but cannot lower them in NHWC.
LAYOUTS = {CONVOLUTION: ["NHWC", "HWIO"], "relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}


def import_onnx(model: Path, batch_size: int = 1) -> Any:
    """Return an ONNX model as a Relax module with a fixed batch size.

    Raises:
        InputError: There is no such file.
        ModelError: The file is no ONNX model, or TVM does not support one of its operators; the message is the reason.
    """
    import onnx

    tvm()
    frontend = importlib.import_module("tvm.relax.frontend.onnx")
    if not model.is_file():
        raise InputError(f"no such model: {model}; expected an ONNX file, a deployment folder or a workload")
    try:
        graph = onnx.load(str(model))
    except Exception as error:  # protobuf has its own exceptions
        raise ModelError(f"it is not an ONNX model: {last_line(error)}") from error
    weights = {tensor.name for tensor in graph.graph.initializer}
    shapes = {
        tensor.name: _fixed_shape(tensor, batch_size) for tensor in graph.graph.input if tensor.name not in weights
    }
    try:
        with _clip_as_min_max(frontend), redirect_stdout(None):  # it prints operators that it cannot convert
            return frontend.from_onnx(graph, shape_dict=shapes, keep_params_in_input=False)
    except Exception as error:  # an unsupported operator or a shape that it cannot infer
        raise ModelError(f"TVM cannot import it: {last_line(error)}") from error


def optimize_graph(graph: Any, target: Target, level: int = DEFAULT_GRAPH_LEVEL) -> Any:
    """Return the graph optimized and lowered to TIR functions, ready to be tuned. Raises ModelError if TVM fails."""
    transform = importlib.import_module("tvm.relax").transform
    passes = [transform.DecomposeOpsForInference(), transform.Normalize()]
    if level >= 3:
        passes += [transform.CanonicalizeBindings()]
        passes += [transform.ConvertLayout(LAYOUTS)] if _has_convolution(graph) else []
        passes += [transform.Normalize(), transform.EliminateCommonSubexpr()]
    if level >= 4:
        passes += [transform.CombineParallelMatmul(), transform.FastMathTransform(), transform.Normalize()]
    if level >= 2:
        passes += [transform.FoldConstant()]
    passes += [transform.LegalizeOps(), transform.AnnotateTIROpPattern()]
    if level >= 2:
        passes += [transform.FoldConstant()]
    if level >= 1:
        passes += [transform.FuseOps(), transform.FuseTIR(), transform.DeadCodeElimination()]
    try:
        with target.tvm_target():
            return tvm().transform.Sequential(passes)(graph)
    except Exception as error:
        raise ModelError(f"its graph cannot be optimized at level {level}: {last_line(error)}") from error


def _has_convolution(graph: Any) -> bool:
    """Return whether there is a layout to convert: without any, TVM's pass fails on some graphs (std::bad_alloc)."""
    convolutions = []

    def visit(expression: Any) -> None:
        if getattr(getattr(expression, "op", None), "name", "") == CONVOLUTION:
            convolutions.append(expression)

    relax = importlib.import_module("tvm.relax")
    for function in graph.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return bool(convolutions)


@contextmanager
def _clip_as_min_max(frontend: Any) -> Iterator[None]:
    """Convert ONNX's Clip with constant bounds to min and max: TVM's own conversion blocks layout conversion."""
    relax = importlib.import_module("tvm.relax")
    converter = frontend.onnx_frontend.Clip
    original = converter.__dict__["_impl_v13"]

    def convert(kind: Any, builder: Any, inputs: Any, attributes: Any, weights: Any) -> Any:
        bounds = [bound.value.numpy() if hasattr(bound, "value") else None for bound in inputs[1:3]]
        if len(bounds) < 2 or any(bound is None or bound.size != 1 or math.isnan(bound.item()) for bound in bounds):
            return original.__func__(kind, builder, inputs, attributes, weights)
        return relax.op.minimum(relax.op.maximum(inputs[0], inputs[1]), inputs[2])

    converter._impl_v13 = classmethod(convert)
    try:
        yield
    finally:
        converter._impl_v13 = original


def _fixed_shape(tensor: Any, batch_size: int) -> list[int]:
    """Return the shape of an input; its first dimension is the batch if it is dynamic."""
    sizes = [dimension.dim_value or 0 for dimension in tensor.type.tensor_type.shape.dim]
    if any(size <= 0 for size in sizes[1:]):
        raise ModelError(f"input {tensor.name!r} has dynamic dimensions besides the batch: {sizes}")
    return [batch_size, *sizes[1:]] if sizes and sizes[0] <= 0 else sizes


def last_line(error: BaseException) -> str:
    """Return the last line of a TVM error, which has the reason."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("InternalError: ") if lines else type(error).__name__
