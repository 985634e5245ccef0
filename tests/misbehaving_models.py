"""ONNX files that misbehave, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


def endless(path: Path) -> Path:
    """Write a valid model of four features whose Loop node never ends; return the path."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["sum", "one"], ["next_sum"]),
        ],
        "body",
        [
            _value("iteration", TensorProto.INT64, []),
            _value("go_on", TensorProto.BOOL, []),
            _value("sum", TensorProto.FLOAT, ["batch", 4]),
        ],
        [_value("goes_on", TensorProto.BOOL, []), _value("next_sum", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.array(1.0, np.float32), "one")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "always", "x"], ["y"], body=body)],
        "endless",
        [_value("x", TensorProto.FLOAT, ["batch", 4])],
        [_value("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.array(True), "always")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def _value(name: str, kind: int, shape: Sequence[int | str]) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)
