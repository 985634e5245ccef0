from __future__ import annotations

import mmap

import pytest

from onefold.meter.counters import EVENTS, HARDWARE_EVENTS, Counters, scaled


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
