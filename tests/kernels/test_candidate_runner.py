"""Building and timing candidates: a crash, a hang or a wrong output is a failed candidate and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from small_graphs import calling, for_another_machine, layer, loops

from onefold.kernels.candidate_runner import (
    MIN_REPEAT_MS,
    REPEATS,
    BuildResult,
    CandidateRunner,
    MeasurementProcess,
    MeasureOutcome,
)
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.kernel_library import LibraryManifest
from onefold.kernels.measurement_worker import (
    CACHE_FLUSH,
    MAX_FLUSHED_RUNS,
    time_out_of_cache,
    time_warm_cache,
    timing_function,
)
from onefold.kernels.targets import Target
from onefold.vocabulary.errors import EngineError, InputError, ModelError
from onefold.vocabulary.kernels import CandidateFailure, Operator

DOUBLE = "double"


def pid(process: MeasurementProcess) -> int:
    assert process.worker is not None
    return process.worker.pid


def measured(runner: CandidateRunner, module: Any, operator: str = DOUBLE) -> MeasureOutcome:
    (built,) = runner.build([module])
    return runner.measure(operator, module, built)


@pytest.fixture
def double(runner: CandidateRunner) -> Iterator[Any]:
    """A module that doubles, with a reference output; the runner must still work after the test."""
    module = loops(lambda x: x * 2.0)
    if not runner.has_reference(DOUBLE):
        assert runner.measure_reference(DOUBLE, module, runner.build([module])[0]).failure is None
    yield module
    after = measured(runner, module)
    assert after.failure is None
    assert after.latency_s is not None


def test_a_valid_candidate_has_a_latency_and_a_cost(
    runner: CandidateRunner, operators: dict[str, tuple[Operator, Any]]
) -> None:
    _, module = operators["conv2d"]
    built = runner.build([module, module])
    assert not runner.has_reference("fresh")
    right, again = runner.measure_reference("fresh", module, built[0]), runner.measure("fresh", module, built[1])
    assert runner.has_reference("fresh")
    for result in (right, again):
        assert (result.failure, result.error) == (None, "")
        assert result.latency_s is not None
        assert 0 < result.latency_s < 0.1
        assert result.build_s > 0
        assert result.run_s > 0
    assert not any(library.file.exists() for library in built)  # deleted after the run


@pytest.mark.parametrize(("outputs", "clock"), [(256, time_warm_cache), (257, time_out_of_cache)])
def test_large_weights_are_timed_out_of_cache(outputs: int, clock: Any, runner: CandidateRunner) -> None:
    arguments = (("float32", (1, 256)), ("float32", (256, outputs)), ("float32", (1, outputs)))
    assert timing_function(arguments) is clock
    (built,) = runner.build([layer(256, outputs)])
    result = runner.time_library(built.file, arguments)
    assert result.error == ""
    times = result.value["latencies"]
    assert len(times) >= REPEATS
    assert all(time_s > 0 for time_s in times)


@pytest.mark.parametrize(
    ("latency_s", "runs"), [(1e-6, MAX_FLUSHED_RUNS), (1e-3, REPEATS * MIN_REPEAT_MS), (1.0, REPEATS)]
)
def test_the_cache_is_flushed_before_each_run(latency_s: float, runs: int) -> None:
    asked: list[dict[str, Any]] = []

    class FakeLibrary:
        def time_evaluator(self, name: str, device: Any, **options: Any) -> Any:
            asked.append(options)
            return lambda *values: SimpleNamespace(results=[latency_s] * options["repeat"])

    assert time_out_of_cache(FakeLibrary(), None, [], REPEATS, MIN_REPEAT_MS) == [latency_s] * runs
    assert all((call["number"], call["f_preproc"]) == (1, CACHE_FLUSH) for call in asked)


def test_another_module_with_the_same_output_is_correct(runner: CandidateRunner, double: Any) -> None:
    assert measured(runner, loops(lambda x: x + x)).failure is None


def test_a_wrong_output_is_a_failure(runner: CandidateRunner, double: Any) -> None:
    result = measured(runner, loops(lambda x: x * 2.01))
    assert (result.latency_s, result.failure) == (None, CandidateFailure.WRONG)


def test_nan_is_a_wrong_output(runner: CandidateRunner, double: Any) -> None:
    from tvm import tirx

    assert measured(runner, loops(lambda x: tirx.sqrt(-1.0 - x * x))).failure is CandidateFailure.WRONG


def test_a_schedule_that_cannot_be_compiled_is_invalid(runner: CandidateRunner, double: Any) -> None:
    result = measured(runner, for_another_machine())
    assert (result.latency_s, result.failure, result.run_s) == (None, CandidateFailure.INVALID, 0.0)
    assert "not implemented" in result.error


def test_a_crash_is_reported_with_its_signal_and_affects_no_other_candidate(
    runner: CandidateRunner, double: Any
) -> None:
    modules = [double, for_another_machine(), calling("abort"), double]
    result = [runner.measure(DOUBLE, module, built) for module, built in zip(modules, runner.build(modules))]
    assert [candidate.failure for candidate in result] == [None, CandidateFailure.INVALID, CandidateFailure.CRASH, None]
    assert [candidate.latency_s is None for candidate in result] == [False, True, True, False]
    assert "SIGABRT" in result[2].error


def test_a_hanging_candidate_is_killed(runner: CandidateRunner, double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.kernels.candidate_runner.RUN_TIMEOUT_S", 0.3)
    before = psutil.Process(pid(runner._timing_process))
    result = measured(runner, calling("sleep", 60))
    monkeypatch.undo()
    assert (result.latency_s, result.failure, result.error) == (
        None,
        CandidateFailure.SLOW_RUN,
        "time_kernel took more than 0.3 s",
    )
    assert not before.is_running()


def test_without_a_reference_output_nothing_is_compared(runner: CandidateRunner, double: Any) -> None:
    (built,) = runner.build([for_another_machine()])
    assert runner.measure_reference("broken", double, built).failure is CandidateFailure.INVALID
    assert runner.has_reference("broken")
    assert measured(runner, double, "broken").failure is None


def test_a_model_that_cannot_be_run_is_an_error(runner: CandidateRunner, tmp_path: Path, double: Any) -> None:
    opener = partial(CompiledModel, tmp_path / "none.so", LibraryManifest("", "", 1, 1, {}, (), "tvm"))
    with pytest.raises(ModelError, match=r"the compiled model cannot be run: .*none\.so cannot be loaded"):
        runner.time_served(opener, [])


def test_workers_never_import_torch(runner: CandidateRunner, double: Any) -> None:
    for worker in runner._processes:
        assert worker.worker is None or not any(
            "libtorch" in mapping.path for mapping in psutil.Process(pid(worker)).memory_maps()
        )


def test_workers_ignore_ctrl_c(runner: CandidateRunner, double: Any) -> None:
    worker = pid(runner._timing_process)
    os.kill(worker, signal.SIGINT)
    assert measured(runner, double).failure is None
    assert pid(runner._timing_process) == worker


def test_candidates_run_with_the_threads_of_the_target(here: Target) -> None:
    with CandidateRunner(Target(here.processor, "", 3)) as runner:
        assert runner._timing_process.environment == {"TVM_NUM_THREADS": "3"}


def test_no_other_thread_spins_beside_a_candidate(runner: CandidateRunner, double: Any) -> None:
    threads = psutil.Process(pid(runner._timing_process)).threads()
    main, *others = sorted(threads, key=lambda one: one.id)
    assert main.user_time > 0
    assert all(other.user_time < 0.1 for other in others), "those of numpy and of the meter"


def test_a_hanging_builder_is_replaced_and_closing_leaves_nothing_behind(
    here: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CandidateRunner(here, builders=1) as runner:
        runner.build([loops(lambda x: x * 2.0)])
        first = psutil.Process(pid(runner._idle_builders[0]))
        first.suspend()
        monkeypatch.setattr("onefold.kernels.candidate_runner.BUILD_TIMEOUT_S", 0.2)
        late = measured(runner, loops(lambda x: x * 2.0))
        monkeypatch.undo()
        assert (late.failure, late.error) == (CandidateFailure.SLOW_BUILD, "build took more than 0.2 s")
        assert not first.is_running()
        (built,) = runner.build([loops(lambda x: x * 2.0)])
        assert built.file.is_file()

        second = psutil.Process(pid(runner._idle_builders[0]))
        second.suspend()
        result: list[BuildResult] = []
        at_work = threading.Thread(target=lambda: result.extend(runner.build([loops(lambda x: x * 3.0)])))
        at_work.start()
        while runner._idle_builders:  # until the build has started
            time.sleep(0.001)
    at_work.join(60)
    assert not at_work.is_alive()
    assert result[0].reply.failure is CandidateFailure.CRASH
    assert not second.is_running()
    assert not built.file.parent.exists()
    assert runner._processes[0].worker is None
    runner.close()  # harmless when repeated


def test_workers_that_do_not_start_are_an_error(here: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with CandidateRunner(here, builders=1) as runner, pytest.raises(EngineError, match="did not start"):
        runner.build([loops(lambda x: x * 2.0)])


@pytest.mark.parametrize("remote", ["board", "board:", ":9090", "board:port"])
def test_remote_needs_a_host_and_a_port(remote: str, here: Target) -> None:
    with pytest.raises(InputError, match="remote must be HOST:PORT"):
        CandidateRunner(here, remote=remote)


def test_code_for_another_architecture_runs_only_remotely(here: Target) -> None:
    board = Target("cortex-a72", "aarch64-linux-gnu", 4)
    with (
        CandidateRunner(board) as there,
        CandidateRunner(board, remote="board:9090") as reached,
        CandidateRunner(here) as local,
    ):
        assert [there.can_run, reached.can_run, local.can_run] == [False, True, True]
