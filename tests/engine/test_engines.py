"""The contract of Engine for every engine; then what only worker processes promise, with real deaths and hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_contract import EngineContract, events_of

from onefold.engine import (
    Call,
    CallFailed,
    CallFinished,
    CallReported,
    Engine,
    Event,
    InlineEngine,
    ProcessEngine,
    Setup,
    open_engine,
    run_call,
)
from onefold.meter import ClockMeter
from onefold.processes import lease_free_cores, least_used_cores, lent_cores
from onefold.vocabulary.errors import EngineError, InputError, WorkloadError
from onefold.vocabulary.records import Failure, FailureKind

Steps = Generator[Any, None, Any]
DEADLINE_S = 120.0


class TestInline(EngineContract):
    @pytest.fixture
    def make(self) -> Callable[[Setup], Engine]:
        return lambda setup: open_engine("inline", setup)


class TestProcesses(EngineContract):
    @pytest.fixture
    def make(self) -> Callable[[Setup], Engine]:
        return lambda setup: open_engine("processes", setup)


def test_an_unknown_engine_is_an_error_with_the_nearest_name() -> None:
    assert isinstance(open_engine("inline"), InlineEngine)
    with pytest.raises(InputError, match="did you mean 'inline'"):
        open_engine("inlin")


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[ProcessEngine]:
    with ProcessEngine(2) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: ProcessEngine) -> Iterator[ProcessEngine]:
    """Return an engine whose slots are free before and after each test."""
    yield shared_engine
    deadline = time.monotonic() + DEADLINE_S
    while shared_engine.free_slots < 2 and time.monotonic() < deadline:
        shared_engine.wait(0.5)
    assert shared_engine.free_slots == 2


def process_id(context: Any, *, tick: Callable[[], None]) -> Steps:
    yield os.getpid()
    return "finished"


def wait_for_file(context: Any, path: str, *, tick: Callable[[], None]) -> Steps:
    yield os.getpid()
    while not Path(path).exists():
        tick()
        time.sleep(0.02)
    return "finished"


def hang(context: Any, *, tick: Callable[[], None]) -> Steps:
    yield os.getpid()
    time.sleep(600)


def allocate(context: Any, megabytes: int, *, tick: Callable[[], None]) -> Steps:
    yield len(bytearray(megabytes * 2**20))


def kill_itself(context: Any, *, tick: Callable[[], None]) -> Steps:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def keep_ticking(context: Any, seconds: float, *, tick: Callable[[], None]) -> Steps:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tick()
        time.sleep(0.05)
    yield "done"


def cores(context: Any, *, tick: Callable[[], None]) -> Steps:
    yield sorted(os.sched_getaffinity(0))


def lent(context: Any, changes: int, *, tick: Callable[[], None]) -> Steps:
    """Report the lent cores whenever they change."""
    before: tuple[int, ...] = ()
    for _ in range(changes):
        while (now := lent_cores()) == before:
            tick()
            time.sleep(0.01)
        yield now
        before = now


def reports(engine: Engine, count: int) -> dict[int, Any]:
    """Return the first report of each of `count` runs."""
    values: dict[int, Any] = {}
    while len(values) < count:
        values |= {event.run: event.value for event in engine.wait(5.0) if isinstance(event, CallReported)}
    return values


def test_a_killed_worker_is_a_failed_call_that_may_be_retried(engine: ProcessEngine) -> None:
    end = events_of(engine, engine.start(Call(kill_itself)))[-1]
    assert isinstance(end, CallFailed)
    assert end.failure.kind is FailureKind.KILLED
    assert end.retry
    assert run_call(engine, Call(process_id)) == "finished"


def test_a_single_call_is_retried_and_then_returns_its_failure(engine: ProcessEngine) -> None:
    failure = run_call(engine, Call(kill_itself))
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.KILLED


def test_killing_one_worker_does_not_affect_the_other(engine: ProcessEngine, tmp_path: Path) -> None:
    first, second = (engine.start(Call(wait_for_file, (str(tmp_path / "go"),))) for _ in range(2))
    os.kill(reports(engine, 2)[first], signal.SIGKILL)
    events: list[Event] = []
    while not events:
        events = engine.wait(5.0)
    assert [(type(event), event.run) for event in events] == [(CallFailed, first)]
    (tmp_path / "go").touch()
    assert isinstance(events_of(engine, second)[-1], CallFinished)


def test_a_suspended_worker_is_killed_and_its_call_may_be_retried(engine: ProcessEngine, tmp_path: Path) -> None:
    run = engine.start(Call(wait_for_file, (str(tmp_path / "go"),)))
    pid = reports(engine, 1)[run]
    os.kill(pid, signal.SIGSTOP)
    end = events_of(engine, run)[-1]
    assert isinstance(end, CallFailed)
    assert end.retry
    assert "was suspended by another program (SIGSTOP)" in end.failure.reason
    assert not psutil.pid_exists(pid)


def setup_that_suspends_itself_once(marker: str) -> None:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_worker_that_is_suspended_during_its_set_up_is_replaced(tmp_path: Path) -> None:
    with ProcessEngine(1, Setup(setup_that_suspends_itself_once, (str(tmp_path / "once"),))) as engine:
        assert run_call(engine, Call(process_id)) == "finished"


def test_a_call_has_not_hung_while_the_whole_program_was_suspended() -> None:
    """As with Ctrl-Z and `fg`: the call is silent for longer than the hang timeout, but so is its coordinator."""
    program = (
        "import time\n"
        "from onefold.engine import Call, CallReported, ProcessEngine\n"
        "def sleep(context, *, tick):\n"
        "    yield 'begun'\n"
        "    time.sleep(4)\n"
        "    yield 'done'\n"
        "with ProcessEngine(1, hang_timeout_s=6.0) as engine:\n"
        "    engine.start(Call(sleep))\n"
        "    for _ in range(2):\n"
        "        while not (events := engine.wait(1.0)):\n"
        "            pass\n"
        "        print(getattr(events[0], 'value', events[0]), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        os.killpg(parent.pid, signal.SIGSTOP)
        time.sleep(8)  # more than the hang timeout
        os.killpg(parent.pid, signal.SIGCONT)
        assert parent.stdout.readline() == "done\n"


def test_a_silent_call_has_hung() -> None:
    with ProcessEngine(1, hang_timeout_s=0.5) as engine:
        end = events_of(engine, engine.start(Call(hang)))[-1]
    assert isinstance(end, CallFailed)
    assert end.failure.kind is FailureKind.HUNG
    assert not end.retry


def test_a_call_that_ticks_has_not_hung() -> None:
    with ProcessEngine(1, hang_timeout_s=3.0) as engine:
        assert isinstance(events_of(engine, engine.start(Call(keep_ticking, (4.0,))))[-1], CallFinished)


def test_memory_beyond_the_limit_is_a_failed_call_and_nothing_else() -> None:
    with ProcessEngine(1, memory_bytes=200 * 2**20) as engine:
        end = events_of(engine, engine.start(Call(allocate, (500,))))[-1]
        assert isinstance(end, CallFailed)
        assert end.failure.kind is FailureKind.OUT_OF_MEMORY
        assert isinstance(events_of(engine, engine.start(Call(allocate, (50,))))[-1], CallFinished)


@pytest.mark.parametrize("call", [Call(hang), Call(keep_ticking, (600.0,))])
def test_a_stopped_call_ends_silently_and_frees_its_slot(
    engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr("onefold.engine.processes.GRACE_S", 0.5)
    run = engine.start(call)
    engine.wait(0.5)
    engine.stop(run)
    deadline = time.monotonic() + DEADLINE_S
    while engine.free_slots < 2 and time.monotonic() < deadline:
        assert engine.wait(0.2) == []
    assert engine.free_slots == 2


def test_workers_are_pinned_to_different_cores(engine: ProcessEngine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core only")
    runs = [engine.start(Call(cores)) for _ in range(2)]
    pinned = reports(engine, 2)
    assert pinned[runs[0]] != pinned[runs[1]]
    assert all(len(cores) == 1 for cores in pinned.values())


def test_engines_of_different_processes_are_pinned_to_different_cores(engine: ProcessEngine) -> None:
    """Two homes, each with a study of one worker."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        pytest.skip("one core only")
    program = (
        "import sys\n"
        "from onefold.processes import lease_cores\n"
        f"lease = lease_cores({len(available) - 1}, {available})\n"
        "print('leased', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        report, end = events_of(engine, engine.start(Call(cores)))
        assert isinstance(report, CallReported)
        assert report.value == available[-1:]
        assert isinstance(end, CallFinished)
        other.kill()
    assert least_used_cores(available) == available  # the call has ended


def test_free_cores_are_lent_to_a_call_and_taken_back(engine: ProcessEngine) -> None:
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        pytest.skip("one core only")
    run = engine.start(Call(lent, (2,)))
    engine.lend(run, len(available))
    (report,) = engine.wait(DEADLINE_S)
    assert isinstance(report, CallReported)
    assert len(report.value) == len(available) - 1  # not the one that the call has
    assert least_used_cores(available) == available  # others avoid them
    engine.lend(run, 0)
    assert least_used_cores(available) == sorted(report.value)
    events = engine.wait(DEADLINE_S)
    assert events[0] == CallReported(run, ())
    assert events[1:] or events_of(engine, run)


def test_what_was_lent_to_a_killed_call_is_free_again(engine: ProcessEngine, tmp_path: Path) -> None:
    available = sorted(os.sched_getaffinity(0))
    run = engine.start(Call(wait_for_file, (str(tmp_path / "never"),)))
    (report,) = engine.wait(DEADLINE_S)
    engine.lend(run, len(available) - 1)
    assert isinstance(report, CallReported)
    os.kill(report.value, signal.SIGKILL)
    assert isinstance(events_of(engine, run)[-1], CallFailed)
    assert least_used_cores(available) == available
    free = lease_free_cores(len(available), available)
    assert free is not None
    with free:
        assert free.cores == available


def measured(context: Any, file: str, *, tick: Callable[[], None]) -> Steps:
    with ClockMeter().window() as window:
        yield "measuring"
        while not Path(file).exists():
            pass
    return window.measurement.time_s


def test_the_cost_of_a_call_is_without_pauses(shared_engine: ProcessEngine, tmp_path: Path) -> None:
    began, file = time.perf_counter(), tmp_path / "go on"
    run = shared_engine.start(Call(measured, (str(file),)))
    assert shared_engine.wait(DEADLINE_S) == [CallReported(run, "measuring")]
    with shared_engine.paused():
        time.sleep(0.3)
    file.touch()
    (end,) = events_of(shared_engine, run)
    assert isinstance(end, CallFinished)
    assert end.value <= time.perf_counter() - began - 0.3


def raise_workload_error() -> None:
    raise WorkloadError("the dataset is missing")


def test_errors_of_onefold_in_the_set_up_are_raised_unchanged() -> None:
    with ProcessEngine(1, Setup(raise_workload_error)) as engine, pytest.raises(WorkloadError, match="is missing"):
        wait_forever(engine)


def exit_early() -> None:
    os._exit(3)


def wait_forever(engine: ProcessEngine) -> None:
    while True:
        engine.wait(20.0)


def test_workers_that_cannot_start_are_an_error_and_not_a_loop() -> None:
    with ProcessEngine(1, Setup(exit_early)) as engine, pytest.raises(EngineError, match="exited with code 3"):
        wait_forever(engine)
