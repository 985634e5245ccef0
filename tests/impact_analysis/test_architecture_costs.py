"""Models that are served as the same graph share its costs; costs are measured in turn, and once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onefold.device import Device
from onefold.impact_analysis.architecture_costs import ROUNDS, ArchitectureCost, CostMeasurements, share_costs
from onefold.impact_analysis.architecture_records import served_signature
from onefold.serving.export import samples_beside
from onefold.store.locks import FileLocks


def write(path: Path, nodes: Sequence[onnx.NodeProto], **weights: np.ndarray[Any, Any]) -> Path:
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("input0", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", "width"])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    np.savez(samples_beside(path), input0=np.ones((1, 4), dtype=np.float32))
    return path


def linear(path: Path, bias: Sequence[int]) -> Path:
    """Write a linear layer with a bias of int32, as quantizers do."""
    nodes = [
        helper.make_node("MatMul", ["input0", "weight"], ["product"]),
        helper.make_node("DequantizeLinear", ["bias", "scale"], ["shift"]),
        helper.make_node("Add", ["product", "shift"], ["output"]),
    ]
    weight = np.random.default_rng(bias[0]).normal(size=(4, len(bias))).astype(np.float32)
    return write(path, nodes, weight=weight, scale=np.array(0.1, np.float32), bias=np.array(bias, np.int32))


def test_biases_of_int8_layers_are_weights_and_indices_are_structure(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    assert served_signature(linear(path, [1, 2, 3])) == served_signature(linear(path, [4, 5, 6]))
    assert served_signature(linear(path, [1, 2, 3])) != served_signature(linear(path, [1, 2, 3, 4]))
    gather = [helper.make_node("Gather", ["input0", "indices"], ["output"], axis=1)]
    one, other = (
        served_signature(write(path, gather, indices=np.array(indices, np.int32))) for indices in ([0, 1], [1, 0])
    )
    assert one != other


def test_models_of_one_architecture_share_all_but_their_encoded_size() -> None:
    def figures(latency_s: float, memory_bytes: float, encoded_bytes: float) -> dict[str, float]:
        return {"accuracy": 0.5, "latency_s": latency_s, "memory_bytes": memory_bytes, "encoded_bytes": encoded_bytes}

    own = {0: figures(1.0, 100, 7), 1: figures(2.0, 102, 8), 2: figures(3.0, 104, 9), 3: figures(9.0, 50, 5)}
    cost = ArchitectureCost((1.5, 1.4, 1.6), (3.0, 2.8, 3.2))
    shared = share_costs(own, {0: "a", 1: "a", 2: "a"}, {"a": cost})
    assert [shared.figures[trial]["latency_s"] for trial in own] == [1.4, 1.4, 1.4, 9.0]
    assert [shared.figures[trial]["memory_bytes"] for trial in own] == [102, 102, 102, 50]
    assert [shared.figures[trial]["encoded_bytes"] for trial in own] == [7, 8, 9, 5]
    assert "energy_j" not in shared.figures[0]  # of which the models have none
    assert set(shared.repeatability) == {0, 1, 2}
    assert shared.repeatability[0]["latency_s"] == pytest.approx(0.1 / 1.5)
    assert share_costs(own, {0: "a", 1: "a"}, {}).figures[1]["latency_s"] == 1.5  # not measured in turn: the median


def test_architectures_are_measured_once(tmp_path: Path, this_host: Device) -> None:
    files = {str(width): linear(tmp_path / f"{width}.onnx", [1] * width) for width in (2, 300)}
    rounds: list[int] = []
    measurements = CostMeasurements(
        this_host,
        this_host,
        tmp_path / "costs.json",
        FileLocks(tmp_path).measurement,
        nullcontext,
        on_round=lambda done, _: rounds.append(done),
    )
    costs = measurements.measure(files)
    assert rounds == list(range(ROUNDS))
    assert {len(cost.latencies_s) for cost in costs.values()} == {ROUNDS}
    assert all(cost.costs["latency_s"] == min(cost.latencies_s) > 0 for cost in costs.values())
    for file in files.values():
        file.unlink()
    assert measurements.measure({**files, "unknown": tmp_path / "removed.onnx"}) == costs
    assert len(rounds) == ROUNDS
