from __future__ import annotations

import mmap
import os
import threading
from itertools import count

import pytest

from onefold.meter import counters as counters_module
from onefold.meter.counters import EVENTS, GROUPS, HARDWARE_EVENTS, MAX_FILES, Counters, PerfEvent, scaled


def test_a_multiplexed_count_is_extrapolated():
    assert scaled(100, enabled_ns=50, running_ns=50) == 100
    assert scaled(100, enabled_ns=200, running_ns=50) == 400
    assert scaled(0, enabled_ns=200, running_ns=0) == 0


def test_work_is_counted_if_the_kernel_allows_it():
    with Counters() as counters:
        if "task_clock_ns" not in counters.available:
            pytest.skip("this kernel counts nothing for us")
        before = counters.read()
        sum(i * i for i in range(300_000))
        after = counters.read()
    assert after["task_clock_ns"] > before["task_clock_ns"]
    assert set(after) <= {event.name for event in EVENTS}
    assert counters.available == (), "closed"


def test_touching_a_new_page_is_a_fault():
    with Counters() as counters:
        if "page_faults" not in counters.available:
            pytest.skip("this kernel counts nothing for us")
        before = counters.read()["page_faults"]
        with mmap.mmap(-1, 64 * 2**20) as fresh:
            fresh[:: mmap.PAGESIZE] = bytes(len(fresh) // mmap.PAGESIZE)
        assert counters.read()["page_faults"] > before


def test_an_unavailable_event_is_left_out():
    with Counters() as counters:
        assert set(counters.read()) == set(counters.available)
    assert "page_faults" not in HARDWARE_EVENTS
    assert "cycles" in HARDWARE_EVENTS


def test_a_thread_that_ends_before_it_is_counted_costs_no_event(monkeypatch: pytest.MonkeyPatch):
    with Counters() as counters:
        expected = counters.available
    ended = threading.Thread()
    ended.start()
    ended.join()
    assert ended.native_id is not None
    threads = [os.getpid(), ended.native_id]
    monkeypatch.setattr(counters_module, "_threads", lambda: threads)
    with Counters() as counters:
        assert counters.available == expected


def test_every_event_is_in_one_group():
    assert sorted(name for group in GROUPS for name in group) == sorted(event.name for event in EVENTS)


@pytest.mark.parametrize("threads", [64, 400])
def test_groups_of_events_take_turns_if_there_are_many_threads(monkeypatch: pytest.MonkeyPatch, threads: int):
    """64 threads have 832 counters of hardware events: more files than a process should open."""
    opened: dict[int, tuple[str, int]] = {}
    most = 0

    def fake_open(event: PerfEvent, thread: int) -> int:
        nonlocal most
        opened[number := next(numbers)] = event.name, thread
        most = max(most, len(opened))
        return number

    numbers = count(1)
    monkeypatch.setattr(counters_module, "_opened", fake_open)
    monkeypatch.setattr(counters_module, "_scaled", lambda _: 10.0)
    monkeypatch.setattr(counters_module, "_close", lambda given: [opened.pop(number) for number in given])
    monkeypatch.setattr(counters_module, "_threads", lambda: list(range(threads)))
    with Counters() as counters:
        for _ in range(len(GROUPS)):
            together = {name for name, _ in opened.values()}
            assert all(together >= set(group) for group in GROUPS if together & set(group))
            counters.rotate()
        counts = counters.read()
    assert set(counts) == {event.name for event in EVENTS}
    assert all(count >= 10.0 * threads for count in counts.values())
    assert most <= max(MAX_FILES, 6 * threads)
    assert not opened


def test_groups_that_fit_stay_open():
    with Counters() as counters:
        before = counters.available
        counters.rotate()
        assert counters.available == before
