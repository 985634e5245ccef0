"""Which runtimes are compared, and which are timed again before one is recommended."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.kernels.candidate_runner import CandidateRunner, ServedTiming
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.runtime_comparison import compare_runtimes
from onefold.runtimes.race import CLOSE, ServingProcess, contenders
from onefold.serving.served_model import ServedModel
from onefold.vocabulary.serving import ServingPoint


@pytest.mark.parametrize(
    ("times", "near"),
    [
        ({"tvm": [1.0, 1.3], "onnxruntime": [2.0]}, []),
        ({"tvm": [1.3, 1.0], "onnxruntime": [9.0, 1.1]}, ["tvm", "onnxruntime"]),
        ({"tvm": [3.0], "onnxruntime": [1.0], "onnxruntime int8": [CLOSE]}, ["onnxruntime", "onnxruntime int8"]),
        ({"tvm": [1.0]}, []),
    ],
)  # fmt: skip
def test_runtimes_close_to_the_fastest_are_timed_again(times: dict[str, list[float]], near: list[str]) -> None:
    assert contenders(times) == near


@pytest.mark.parametrize(
    ("threads", "cores", "names"),
    [
        (1, 2, {"tvm", "onnxruntime"}),
        (2, 2, {"tvm", "onnxruntime", "onnxruntime spinning"}),
        (4, 2, {"tvm", "onnxruntime"}),  # more spinning threads than cores are meaningless
    ],
)  # fmt: skip
def test_with_several_threads_onnxruntime_is_timed_both_ways(
    threads: int, cores: int, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.kernels.runtime_comparison.available_cores", lambda: list(range(cores)))
    points: list[ServingPoint] = []

    def time(process: ServingProcess, opener: Any, inputs: Any) -> list[float]:
        assert opener.func is ServedModel
        points.append(opener.args[1])
        return [1.0 if points[-1].waiting == "spinning" else 3.0]

    monkeypatch.setattr(ServingProcess, "time", time)
    opened: Any = SimpleNamespace(name="mine", file=tmp_path / "model.onnx", calibration=None, inputs=[])
    result = compare_runtimes(lambda: 2.0, opened, None, tmp_path, ServingPoint(1, threads))
    assert {runtime.name for runtime in result.runtimes} == names
    assert {point.threads for point in points} == {threads}
    assert result.recommended == ("onnxruntime spinning" if "onnxruntime spinning" in names else "tvm")
    assert not any(runtime.note for runtime in result.runtimes)


def test_what_a_call_does_outside_of_its_runtime_counts(runner: CandidateRunner) -> None:
    calls_that_sleep = partial(partial, time.sleep, 0.01)
    with ServingProcess() as process:
        served = process.time(calls_that_sleep, [], repeats=2)
    for latencies in (served, runner.time_served(calls_that_sleep, [], repeats=2).latencies):
        assert len(latencies) == 2
        assert min(latencies) >= 0.01


def test_a_library_is_timed_through_the_call_that_serves(
    compiler: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    timing = ServedTiming([1.0, 3.0, 2.0], list(compiler.reference), None)
    monkeypatch.setattr(compiler.runner, "time_served", lambda opener, *_, **__: opened.append(opener) or timing)
    assert compiler.time_library(tmp_path / "a.so").latency_s == 2.0
    assert (opened[0].func, opened[0].args[0]) == (CompiledModel, tmp_path / "a.so")
