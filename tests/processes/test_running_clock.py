"""The clock of a child stands still while its parent pauses it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processes import Worker, paused_s, running_clock, running_s
from onefold.processes.running_clock import PausedTime

DEADLINE_S = 60.0


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    worker = Worker("child")
    yield worker
    worker.kill()


def test_pauses_of_a_child_are_taken_out_of_its_clock(worker: Worker) -> None:
    began = time.perf_counter()
    first, none_yet = worker.ask(("clocks",), DEADLINE_S)
    for _ in range(2):
        worker.pause()
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(0.1)
        worker.resume()
    last, paused = worker.ask(("clocks",), DEADLINE_S)
    assert none_yet == 0.0
    assert paused >= 0.2
    assert 0.0 <= last - first <= time.perf_counter() - began - paused


def test_a_child_that_was_killed_in_a_pause_can_be_resumed(worker: Worker) -> None:
    worker.pause()
    worker.kill()
    worker.resume()


def test_a_process_that_nobody_pauses_has_the_usual_clock() -> None:
    before = time.perf_counter()
    assert paused_s() == 0.0
    assert before <= running_s() <= time.perf_counter()


@given(st.lists(st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e4)), max_size=20))
def test_running_and_paused_time_add_up(stretches: list[tuple[float, float]]) -> None:
    """In turn running and paused, on a simulated clock."""
    now = 0.0
    with pytest.MonkeyPatch.context() as patched, closing(PausedTime()) as pauses:
        patched.setattr(time, "perf_counter", lambda: now)
        patched.setattr(running_clock, "_page", None)
        running_clock.follow_pauses(os.dup(pauses.fileno()))
        for running, paused in stretches:
            now += running
            pauses.begin()
            now += paused
            pauses.end()
        total = sum(paused for _, paused in stretches)
        assert paused_s() == pytest.approx(total)
        assert running_s() == pytest.approx(now - total, abs=1e-6)
