"""Processes that compile and time: what crashes, hangs or is wrong is a failed candidate and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from small_graphs import calling, for_another_machine, layer, loops

from onefold.kernels.bench import LEAST_MS, REPEATS, Bench, BenchProcess, Built, Outcome
from onefold.kernels.targets import Target
from onefold.kernels.worker import FLUSH, MOST_RUNS, clock_for, with_cold_weights, with_warm_weights
from onefold.vocabulary.errors import EngineError, InputError, ModelError
from onefold.vocabulary.kernels import CandidateFailure, Operator

DOUBLE = "double"


def pid(process: BenchProcess) -> int:
    assert process.worker is not None
    return process.worker.pid


def measured(bench: Bench, module: Any, operator: str = DOUBLE) -> Outcome:
    (built,) = bench.build([module])
    return bench.run(operator, module, built)


@pytest.fixture
def double(bench: Bench) -> Iterator[Any]:
    """Loops that double; the bench knows what they answer, and must still work when the test is over."""
    module = loops(lambda x: x * 2.0)
    if not bench.knows(DOUBLE):
        assert bench.take_as_right(DOUBLE, module, bench.build([module])[0]).failure is None
    yield module
    after = measured(bench, module)
    assert after.failure is None
    assert after.latency_s is not None


def test_what_works_has_a_latency_and_what_it_took(bench: Bench, operators: dict[str, tuple[Operator, Any]]) -> None:
    _, module = operators["conv2d"]
    built = bench.build([module, module])
    assert not bench.knows("fresh")
    right, again = bench.take_as_right("fresh", module, built[0]), bench.run("fresh", module, built[1])
    assert bench.knows("fresh")
    for found in (right, again):
        assert (found.failure, found.said) == (None, "")
        assert found.latency_s is not None
        assert 0 < found.latency_s < 0.1
        assert found.build_s > 0
        assert found.run_s > 0
    assert not any(one.file.exists() for one in built)  # libraries that were run are of no more use


@pytest.mark.parametrize(("outputs", "clock"), [(256, with_warm_weights), (257, with_cold_weights)])
def test_operators_with_small_and_large_weights_are_timed(outputs: int, clock: Any, bench: Bench) -> None:
    arguments = (("float32", (1, 256)), ("float32", (256, outputs)), ("float32", (1, outputs)))
    assert clock_for(arguments) is clock
    (built,) = bench.build([layer(256, outputs)])
    found = bench.time(built.file, arguments)
    assert found.complaint == ""
    times = found.answer["times"]
    assert len(times) >= REPEATS
    assert all(one > 0 for one in times)


@pytest.mark.parametrize(("latency_s", "runs"), [(1e-6, MOST_RUNS), (1e-3, REPEATS * LEAST_MS), (1.0, REPEATS)])
def test_large_weights_are_taken_out_of_the_caches_before_each_run(latency_s: float, runs: int) -> None:
    asked: list[dict[str, Any]] = []

    class LibraryManifest:
        def time_evaluator(self, name: str, device: Any, **options: Any) -> Any:
            asked.append(options)
            return lambda *values: SimpleNamespace(results=[latency_s] * options["repeat"])

    assert with_cold_weights(LibraryManifest(), None, [], REPEATS, LEAST_MS) == [latency_s] * runs
    assert all((one["number"], one["f_preproc"]) == (1, FLUSH) for one in asked)


def test_other_loops_with_the_same_answers_are_right(bench: Bench, double: Any) -> None:
    assert measured(bench, loops(lambda x: x + x)).failure is None


def test_a_wrong_answer_is_told(bench: Bench, double: Any) -> None:
    found = measured(bench, loops(lambda x: x * 2.01))
    assert (found.latency_s, found.failure) == (None, CandidateFailure.WRONG)


def test_an_answer_that_is_no_number_is_wrong(bench: Bench, double: Any) -> None:
    from tvm import tirx

    assert measured(bench, loops(lambda x: tirx.sqrt(-1.0 - x * x))).failure is CandidateFailure.WRONG


def test_a_schedule_that_cannot_be_compiled_is_invalid(bench: Bench, double: Any) -> None:
    found = measured(bench, for_another_machine())
    assert (found.latency_s, found.failure, found.run_s) == (None, CandidateFailure.INVALID, 0.0)
    assert "not implemented" in found.said


def test_a_crash_is_told_with_its_signal_and_does_not_touch_the_others_of_a_batch(bench: Bench, double: Any) -> None:
    modules = [double, for_another_machine(), calling("abort"), double]
    found = [bench.run(DOUBLE, module, built) for module, built in zip(modules, bench.build(modules))]
    assert [one.failure for one in found] == [None, CandidateFailure.INVALID, CandidateFailure.CRASH, None]
    assert [one.latency_s is None for one in found] == [False, True, True, False]
    assert "SIGABRT" in found[2].said


def test_what_hangs_is_ended(bench: Bench, double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.kernels.bench.RUN_S", 0.3)
    before = psutil.Process(pid(bench._runner))
    found = measured(bench, calling("sleep", 60))
    monkeypatch.undo()
    assert (found.latency_s, found.failure, found.said) == (None, CandidateFailure.SLOW_RUN, "run took more than 0.3 s")
    assert not before.is_running()


def test_where_the_plain_loops_fail_nothing_is_compared(bench: Bench, double: Any) -> None:
    (built,) = bench.build([for_another_machine()])
    assert bench.take_as_right("broken", double, built).failure is CandidateFailure.INVALID
    assert bench.knows("broken")
    assert measured(bench, double, "broken").failure is None


def test_a_whole_model_that_cannot_be_run_is_an_error(bench: Bench, tmp_path: Path, double: Any) -> None:
    with pytest.raises(ModelError, match="the compiled model cannot be run: cannot find file"):
        bench.whole(tmp_path / "none.so", [])


def test_workers_never_load_torch(bench: Bench, double: Any) -> None:
    for worker in bench._workers:
        assert not any("libtorch" in one.path for one in psutil.Process(pid(worker)).memory_maps())


def test_ctrl_c_is_not_the_workers_to_answer(bench: Bench, double: Any) -> None:
    worker = pid(bench._runner)
    os.kill(worker, signal.SIGINT)
    assert measured(bench, double).failure is None
    assert pid(bench._runner) == worker


def test_threads_of_the_runner_are_those_of_the_target(here: Target) -> None:
    with Bench(Target(here.processor, "", 3)) as bench:
        assert bench._runner.environment == {"TVM_NUM_THREADS": "3"}


def test_nothing_spins_beside_a_candidate(bench: Bench, double: Any) -> None:
    threads = psutil.Process(pid(bench._runner)).threads()
    main, *others = sorted(threads, key=lambda one: one.id)
    assert main.user_time > 0
    assert all(one.user_time < 0.1 for one in others), "those of numpy and of a meter"


def test_a_builder_that_hangs_is_replaced_and_closing_leaves_no_process_and_no_file(
    here: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bench(here, builders=1) as bench:
        bench.build([loops(lambda x: x * 2.0)])
        first = psutil.Process(pid(bench._builders[0]))
        first.suspend()
        monkeypatch.setattr("onefold.kernels.bench.BUILD_S", 0.2)
        late = measured(bench, loops(lambda x: x * 2.0))
        monkeypatch.undo()
        assert (late.failure, late.said) == (CandidateFailure.SLOW_BUILD, "build took more than 0.2 s")
        assert not first.is_running()
        (built,) = bench.build([loops(lambda x: x * 2.0)])
        assert built.file.is_file()

        second = psutil.Process(pid(bench._builders[0]))
        second.suspend()
        found: list[Built] = []
        at_work = threading.Thread(target=lambda: found.extend(bench.build([loops(lambda x: x * 3.0)])))
        at_work.start()
        while bench._builders:  # until it is handed its work
            time.sleep(0.001)
    at_work.join(10)
    assert not at_work.is_alive()
    assert found[0].reply.ended is CandidateFailure.CRASH
    assert not second.is_running()
    assert not built.file.parent.exists()
    assert bench._workers[0].worker is None
    bench.close()  # a second time is fine


def test_processes_that_cannot_be_started_are_an_error(here: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with Bench(here, builders=1) as bench, pytest.raises(EngineError, match="cannot be started"):
        bench.build([loops(lambda x: x * 2.0)])


@pytest.mark.parametrize("remote", ["board", "board:", ":9090", "board:port"])
def test_a_server_has_a_host_and_a_port(remote: str, here: Target) -> None:
    with pytest.raises(InputError, match="a TVM server is given as HOST:PORT"):
        Bench(here, remote=remote)


def test_what_is_built_for_another_machine_cannot_be_run_here(here: Target) -> None:
    board = Target("cortex-a72", "aarch64-linux-gnu", 4)
    with Bench(board) as there, Bench(board, remote="board:9090") as reached, Bench(here) as local:
        assert [there.can_run, reached.can_run, local.can_run] == [False, True, True]
