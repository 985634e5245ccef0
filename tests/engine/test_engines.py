"""The engine's contract, on every engine; then what only processes promise, with real deaths and real hunger."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

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
)
from onefold.testing.engines import EngineContract, until_it_ends
from onefold.vocabulary.errors import EngineError, WorkloadError
from onefold.vocabulary.records import FailureKind

Steps = Generator[Any, None, Any]


class TestInline(EngineContract):
    @pytest.fixture
    def make(self) -> Callable[[Setup], Engine]:
        return InlineEngine


class TestProcesses(EngineContract):
    @pytest.fixture
    def make(self) -> Callable[[Setup], Engine]:
        return lambda setup: ProcessEngine(2, setup)


@pytest.fixture
def engine() -> Iterator[ProcessEngine]:
    with ProcessEngine(2, hang_timeout_s=2.0) as engine:
        yield engine


def sleeper(context: Any, seconds: float, *, tick: Callable[[], None]) -> Steps:
    yield os.getpid()
    time.sleep(seconds)
    return "awake"


def hungry(context: Any, megabytes: int, *, tick: Callable[[], None]) -> Steps:
    hoard = bytearray(megabytes * 2**20)
    yield len(hoard)


def dying(context: Any, *, tick: Callable[[], None]) -> Steps:
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def busy(context: Any, seconds: float, *, tick: Callable[[], None]) -> Steps:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tick()
        time.sleep(0.05)
    yield "done"


def where(context: Any, *, tick: Callable[[], None]) -> Steps:
    yield sorted(os.sched_getaffinity(0))


def test_a_killed_worker_is_a_failed_call_that_may_be_tried_again(engine: ProcessEngine) -> None:
    events = until_it_ends(engine, engine.start(Call(dying)))
    assert isinstance(events[-1], CallFailed)
    assert events[-1].failure.kind is FailureKind.KILLED
    assert events[-1].retry
    assert isinstance(until_it_ends(engine, engine.start(Call(sleeper, (0,))))[-1], CallFinished)


def test_killing_one_worker_leaves_the_other_alone(engine: ProcessEngine) -> None:
    runs = [engine.start(Call(sleeper, (1.0,))) for _ in range(2)]
    pids: dict[int, int] = {}
    while len(pids) < 2:
        pids |= {event.run: event.value for event in engine.wait(5.0) if isinstance(event, CallReported)}
    os.kill(pids[runs[0]], signal.SIGKILL)
    ends: list[Event] = []
    while len(ends) < 2:
        ends += engine.wait(5.0)
    assert {type(event) for event in ends if event.run == runs[0]} == {CallFailed}
    assert {type(event) for event in ends if event.run == runs[1]} == {CallFinished}


def test_a_call_that_gives_no_sign_of_life_has_hung(engine: ProcessEngine) -> None:
    events = until_it_ends(engine, engine.start(Call(sleeper, (60,))))
    assert isinstance(events[-1], CallFailed)
    assert events[-1].failure.kind is FailureKind.HUNG
    assert not events[-1].retry


def test_a_call_that_ticks_has_not_hung(engine: ProcessEngine) -> None:
    assert isinstance(until_it_ends(engine, engine.start(Call(busy, (3.0,))))[-1], CallFinished)


def test_memory_beyond_the_limit_is_out_of_memory_and_nothing_else() -> None:
    with ProcessEngine(1, memory_bytes=200 * 2**20) as engine:
        events = until_it_ends(engine, engine.start(Call(hungry, (500,))))
        assert isinstance(events[-1], CallFailed)
        assert events[-1].failure.kind is FailureKind.OUT_OF_MEMORY
        assert isinstance(until_it_ends(engine, engine.start(Call(hungry, (50,))))[-1], CallFinished)


def test_a_stopped_call_says_nothing_more_and_frees_its_slot(engine: ProcessEngine) -> None:
    run = engine.start(Call(sleeper, (60,)))
    while not engine.wait(5.0):
        pass
    engine.stop(run)
    deadline = time.monotonic() + 30
    while engine.free_slots < 2 and time.monotonic() < deadline:
        assert engine.wait(0.2) == []
    assert engine.free_slots == 2


def test_a_lively_call_is_stopped_all_the_same(engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.engine.processes.GRACE_S", 0.5)
    run = engine.start(Call(busy, (30.0,)))
    engine.wait(1.0)
    engine.stop(run)
    deadline = time.monotonic() + 15
    while engine.free_slots < 2 and time.monotonic() < deadline:
        assert engine.wait(0.2) == []
    assert engine.free_slots == 2


def test_workers_are_pinned_to_cores_of_their_own(engine: ProcessEngine) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core only")
    runs = [engine.start(Call(where)) for _ in range(2)]
    seen: dict[int, list[int]] = {}
    while len(seen) < 2:
        seen |= {event.run: event.value for event in engine.wait(5.0) if isinstance(event, CallReported)}
    assert seen[runs[0]] != seen[runs[1]]
    assert all(len(pinned) == 1 for pinned in seen.values())


def unwilling() -> None:
    raise WorkloadError("the data set is on holiday")


def test_our_own_errors_in_set_up_come_through_as_they_are() -> None:
    with ProcessEngine(1, Setup(unwilling)) as engine, pytest.raises(WorkloadError, match="on holiday"):
        engine.wait(20.0)


def exits() -> None:
    os._exit(3)


def wait_forever(engine: ProcessEngine) -> None:
    while True:
        engine.wait(20.0)


def test_workers_that_cannot_start_are_an_error_not_a_loop() -> None:
    with ProcessEngine(1, Setup(exits)) as engine, pytest.raises(EngineError, match="exited with code 3"):
        wait_forever(engine)
