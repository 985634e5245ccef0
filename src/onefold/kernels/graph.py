"""From an ONNX model to loops: import, and the optimisations of the whole graph by level.

0   operators as they are, one by one
1   neighbours fused, dead code out
2   constants folded
3   channels last for convolutions, common parts computed once
4   parallel matrix products combined, fast approximations of exp, tanh and erf: answers may differ in the last digits
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

LEVELS = range(5)
USUAL_LEVEL = 3


def imported(model: Path, batch_size: int = 1) -> Any:
    """The model as TVM's graph, for batches of one size."""
    import onnx

    tvm()
    frontend = importlib.import_module("tvm.relax.frontend.onnx")
    if not model.is_file():
        raise InputError(f"there is no model {model}; give an ONNX file, a deployment folder or a workload")
    try:
        graph = onnx.load(str(model))
    except Exception as error:  # protobuf raises its own kind
        raise ModelError(f"{model} is no ONNX model: {_last_line(error)}") from error
    weights = {one.name for one in graph.graph.initializer}
    shapes = {one.name: _shape(one, batch_size) for one in graph.graph.input if one.name not in weights}
    try:
        with _plain_clips(frontend), redirect_stdout(None):  # it prints what it cannot convert
            return frontend.from_onnx(graph, shape_dict=shapes, keep_params_in_input=False)
    except Exception as error:  # an operator that TVM does not know, a shape that it cannot follow
        raise ModelError(
            f"{model} cannot be compiled: {_last_line(error)}; it can still be served by onnxruntime"
        ) from error


def optimised(graph: Any, target: Target, level: int = USUAL_LEVEL) -> Any:
    """The graph as loops, ready to be tuned and compiled."""
    if level not in LEVELS:
        raise InputError(f"levels of graph optimisation are {LEVELS[0]} to {LEVELS[-1]}, but got {level}")
    relax = importlib.import_module("tvm.relax")
    way = relax.transform
    passes = [way.DecomposeOpsForInference(), way.Normalize()]
    if level >= 3:
        passes += [way.CanonicalizeBindings(), way.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]})]
        passes += [way.Normalize(), way.EliminateCommonSubexpr()]
    if level >= 4:
        passes += [way.CombineParallelMatmul(), way.FastMathTransform(), way.Normalize()]
    if level >= 2:
        passes += [way.FoldConstant()]
    passes += [way.LegalizeOps(), way.AnnotateTIROpPattern()]
    if level >= 2:
        passes += [way.FoldConstant()]
    if level >= 1:
        passes += [way.FuseOps(), way.FuseTIR(), way.DeadCodeElimination()]
    try:
        with target.opened():
            return tvm().transform.Sequential(passes)(graph)
    except Exception as error:
        raise ModelError(f"the graph cannot be optimised at level {level}: {_last_line(error)}") from error


@contextmanager
def _plain_clips(frontend: Any) -> Iterator[None]:
    """Inside, ONNX's Clip between two numbers becomes operators. TVM makes loops of it, which layouts do not pass."""
    relax = importlib.import_module("tvm.relax")
    converter = frontend.onnx_frontend.Clip
    theirs = converter.__dict__["_impl_v13"]

    def ours(kind: Any, builder: Any, inputs: Any, attributes: Any, weights: Any) -> Any:
        ends = [one.value.numpy() if hasattr(one, "value") else None for one in inputs[1:3]]
        if len(ends) < 2 or any(end is None or end.size != 1 or math.isnan(end.item()) for end in ends):
            return theirs.__func__(kind, builder, inputs, attributes, weights)
        return relax.op.minimum(relax.op.maximum(inputs[0], inputs[1]), inputs[2])

    converter._impl_v13 = classmethod(ours)
    try:
        yield
    finally:
        converter._impl_v13 = theirs


def _shape(given: Any, batch_size: int) -> list[int]:
    """Of an input: sizes that are left open come first as a rule, and are the batch."""
    sizes = [one.dim_value or 0 for one in given.type.tensor_type.shape.dim]
    if any(size <= 0 for size in sizes[1:]):
        raise ModelError(f"the input {given.name!r} has sizes that are left open besides its batch: {sizes}")
    return [batch_size, *sizes[1:]] if sizes and sizes[0] <= 0 else sizes


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("InternalError: ") if lines else type(error).__name__
