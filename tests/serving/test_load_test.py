"""Load tests with a real session, a real queue and real clocks."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from onefold.serving.load_test import BatchingQueue, Serve, falls_behind, load_test
from onefold.serving.queue_simulation import Response
from onefold.serving.scenario_settings import ScenarioSettings
from onefold.serving.scenarios import MultiStream, Offline, Scenario, Server, SingleStream
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.serving import ServingPoint

MISSING = Response(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, True, 0)


def chosen(scenario: Scenario, batch_size: int = 1, wait_s: float = 0.0) -> ScenarioSettings:
    return ScenarioSettings(str(scenario), ServingPoint(batch_size=batch_size), wait_s, MISSING, MISSING, "")


class RecordingServer:
    """A server that sleeps and records its batches."""

    def __init__(self, time_s: float = 0.0) -> None:
        self.time_s = time_s
        self.batches: list[int] = []

    def __call__(self, batch_size: int) -> None:
        self.batches.append(batch_size)
        if self.time_s:
            time.sleep(self.time_s)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> onnxruntime.InferenceSession:
    file = tmp_path_factory.mktemp("model") / "model.onnx"
    network = nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 24 * 24, 10)).eval()
    _export(network, file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _export(network: nn.Module, file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no onnxscript is the older one, and says so
        torch.onnx.export(
            network,
            (torch.zeros(1, 1, 28, 28),),
            str(file),
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
        )


@pytest.fixture(scope="module")
def serve(session: onnxruntime.InferenceSession) -> Serve:
    def run(batch_size: int) -> None:
        session.run(None, {"x": np.zeros((batch_size, 1, 28, 28), np.float32)})

    return run


@pytest.mark.parametrize(
    ("scenario", "batch_size", "samples"),
    [(SingleStream(), 1, 1), (MultiStream(6, 40), 4, 6), (Server(100), 8, 1), (Offline(40), 16, 40)],
    ids=str,
)
def test_real_session_serves_every_scenario(serve: Serve, scenario: Scenario, batch_size: int, samples: int) -> None:
    result = load_test(serve, scenario, chosen(scenario, batch_size, 0.002), seconds=0.3)
    assert result.queries >= 1
    assert 0 < result.p50_s <= result.p90_s <= result.p99_s
    assert 0 < result.utilization <= 1
    assert result.throughput_per_s > 0
    if isinstance(scenario, MultiStream | Server):
        rate = scenario.queries_per_s if isinstance(scenario, MultiStream) else scenario.rate_per_s
        assert result.queries == int(0.3 * rate)


def test_queries_are_split_and_do_not_mix() -> None:
    serve = RecordingServer()
    result = load_test(serve, MultiStream(7, 100), chosen(MultiStream(7, 100), 3), seconds=0.1)
    assert serve.batches == [3, 3, 1] * 10
    assert result.queries == 10


def test_batch_size_is_limited_by_the_query() -> None:
    serve = RecordingServer()
    load_test(serve, MultiStream(2, 100), chosen(MultiStream(2, 100), 8), seconds=0.05)
    assert serve.batches == [2] * 5


def test_queued_samples_form_a_batch() -> None:
    serve = RecordingServer(0.02)
    result = load_test(serve, Server(500), chosen(Server(500), 64), seconds=0.2)
    assert sum(serve.batches) == result.queries > 1
    assert max(serve.batches) > 1
    assert result.p50_s >= 0.02


def test_wait_fills_batches() -> None:
    serve = RecordingServer()
    load_test(serve, Server(1_000), chosen(Server(1_000), 10, wait_s=5.0), seconds=0.1)
    assert serve.batches == [10] * 10


def test_overloaded_server_is_stopped() -> None:
    serve = RecordingServer(0.02)
    result = load_test(serve, Server(1_000), chosen(Server(1_000), 1), seconds=0.1)
    assert not result.stable
    assert result.queries < 100


def test_growing_response_times_are_unstable() -> None:
    serve = RecordingServer(0.015)
    result = load_test(serve, MultiStream(1, 100), chosen(MultiStream(1, 100), 1), seconds=0.3)
    assert not result.stable


def test_high_utilization_alone_is_stable() -> None:
    assert not falls_behind([1.0, 1.1, 0.9, 1.0], utilization=0.99)
    assert falls_behind([1.0, 2.0, 3.0, 4.0], utilization=0.99)
    assert not falls_behind([1.0, 2.0, 3.0, 4.0], utilization=0.5)  # a slow moment at the end
    assert not falls_behind([9.0], utilization=1.0)


def test_same_seed_gives_the_same_arrivals() -> None:
    first, again = RecordingServer(), RecordingServer()
    for serve in (first, again):
        load_test(serve, Server(400), chosen(Server(400), 4, wait_s=5.0), seconds=0.1, seed=7)
    assert first.batches == again.batches


def test_exception_of_the_session_propagates() -> None:
    before = threading.active_count()

    def broken(batch_size: int) -> None:
        raise RuntimeError("no such operator")

    with pytest.raises(RuntimeError, match="no such operator"):
        load_test(broken, MultiStream(1, 1), chosen(MultiStream(1, 1)), seconds=30)
    assert threading.active_count() == before


def test_duration_must_be_positive() -> None:
    with pytest.raises(InputError, match="seconds must be above 0"):
        load_test(RecordingServer(), Offline(), chosen(Offline()), seconds=0)


def test_batching_queue_is_fifo_and_ends() -> None:
    line: BatchingQueue[int] = BatchingQueue()
    line.add([1, 2, 3])
    line.close()
    assert line.take(2, 0.0) == [1, 2]
    assert line.take(2, 0.0) == [3]
    assert line.take(2, 0.0) == []
