"""ONNX files that misbehave, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


def endless(path: Path) -> Path:
    """Write a valid model of four features whose Loop node never ends; return the path."""
    flag, number, value = (
        lambda name: helper.make_tensor_value_info(name, TensorProto.BOOL, []),
        lambda name: helper.make_tensor_value_info(name, TensorProto.INT64, []),
        lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]),
    )
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["sum", "one"], ["next_sum"]),
        ],
        "body",
        [number("iteration"), flag("go_on"), value("sum")],
        [flag("goes_on"), value("next_sum")],
        [numpy_helper.from_array(np.array(1.0, np.float32), "one")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "always", "x"], ["y"], body=body)],
        "endless",
        [value("x")],
        [value("y")],
        [numpy_helper.from_array(np.array(True), "always")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path
