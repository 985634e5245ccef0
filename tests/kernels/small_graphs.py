"""Small ONNX files and TIR modules: single nodes, and modules that crash or hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from onefold.kernels.toolchain import tvm

Shape = Sequence[int | str]


def outputs_of(file: Path, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {tensor.name: array for tensor, array in zip(session.get_inputs(), inputs)}))


def saved(
    file: Path, nodes: Sequence[onnx.NodeProto], inputs: dict[str, Shape], outputs: dict[str, Shape], **weights: float
) -> Path:
    """Save an ONNX file of these nodes; weights are scalars."""
    given, got = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in some.items()]
        for some in (inputs, outputs)
    )
    numbers = [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", given, got, numbers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    return file


def loops(each: Callable[[Any], Any]) -> Any:
    """Return a TIR module that applies a function to eight elements."""
    from tvm import te

    given = te.placeholder((8,), "float32", name="given")
    got = te.compute((8,), lambda i: each(given[i]), name="got")
    return tvm().IRModule({"main": te.create_prim_func([given, got])})


def layer(inputs: int, outputs: int) -> Any:
    """Return a TIR module of a matrix-vector product."""
    from tvm import te

    given = te.placeholder((1, inputs), "float32", name="given")
    weights = te.placeholder((inputs, outputs), "float32", name="weights")
    k = te.reduce_axis((0, inputs), name="k")
    got = te.compute((1, outputs), lambda i, j: te.sum(given[i, k] * weights[k, j], axis=k), name="got")
    return tvm().IRModule({"main": te.create_prim_func([given, weights, got])})


def calling(function: str, *arguments: Any) -> Any:
    """Return a TIR module that calls a function of the C library."""
    from tvm import tirx

    return loops(lambda x: x + tirx.Cast("float32", tirx.call_extern("int32", function, *arguments)))


def for_another_machine() -> Any:
    """Return a TIR module with GPU threads, which cannot be compiled for a CPU."""
    from tvm.s_tir import Schedule

    schedule = Schedule(loops(lambda x: x * 2.0))
    schedule.bind(schedule.get_loops(schedule.get_sblock("got"))[0], "threadIdx.x")
    return schedule.mod
