"""What every engine promises. Subclass `EngineContract` and give it a `make` fixture."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from onefold.engine import Call, CallFailed, CallFinished, CallReported, Engine, Event, Setup
from onefold.vocabulary.records import FailureKind

Tick = Callable[[], None]
Make = Callable[[Setup], Engine]


def counting(context: Any, last: int, *, tick: Tick) -> Generator[int, None, str]:
    """Reports 1 to `last`, returns a word."""
    for number in range(1, last + 1):
        tick()
        yield number
    return f"counted with {context}"


def raising(context: Any, *, tick: Tick) -> Generator[int, None, None]:  # noqa: ARG001
    """Reports once, then raises."""
    yield 1
    raise ValueError("no such luck")


def context_of(word: str) -> str:
    """A context for calls."""
    return word


def until_it_ends(engine: Engine, run: int) -> list[Event]:
    """All events of a run, the last one its end."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], (CallFinished, CallFailed)):
        events += [event for event in engine.wait(5.0) if event.run == run]
    return events


class EngineContract:
    """One engine at a time, from the fixture `make`."""

    @pytest.fixture
    def make(self) -> Make:
        """Makes an engine of the kind under test with this set-up."""
        raise NotImplementedError

    def test_yields_are_reported_in_order_and_the_return_is_the_result(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            run = engine.start(Call(counting, (3,)))
            events = until_it_ends(engine, run)
        assert events == [*(CallReported(run, n) for n in (1, 2, 3)), CallFinished(run, "counted with care")]

    def test_a_call_that_raises_is_a_value_with_its_traceback(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            end = until_it_ends(engine, engine.start(Call(raising)))[-1]
            assert isinstance(end, CallFailed)
            assert end.failure.kind is FailureKind.RAISED
            assert end.failure.reason == "ValueError: no such luck"
            assert "no such luck" in end.failure.traceback
            assert not end.retry
            assert isinstance(until_it_ends(engine, engine.start(Call(counting, (1,))))[-1], CallFinished)

    def test_slots_fill_and_free_themselves(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            assert engine.free_slots == engine.slots
            runs = [engine.start(Call(counting, (2,))) for _ in range(engine.slots)]
            assert engine.free_slots == 0
            ended: set[int] = set()
            while len(ended) < len(runs):
                ended |= {event.run for event in engine.wait(5.0) if isinstance(event, CallFinished)}
            assert engine.free_slots == engine.slots

    def test_a_quiet_moment_changes_nothing_but_the_time(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            run = engine.start(Call(counting, (3,)))
            with engine.paused():
                pass
            events = until_it_ends(engine, run)
        assert events == [*(CallReported(run, n) for n in (1, 2, 3)), CallFinished(run, "counted with care")]

    def test_closing_ends_whatever_runs(self, make: Make) -> None:
        with make(Setup(context_of, ("care",))) as engine:
            run = engine.start(Call(counting, (10**9,)))
            assert engine.wait(5.0)[0] == CallReported(run, 1)
        assert engine.wait(0.0) == []
