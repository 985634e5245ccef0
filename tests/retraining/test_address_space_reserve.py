"""Address space put aside is no memory, and is given up when a limit on the process falls."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from onefold.retraining.address_space_reserve import CODE, SIZE, UNLIMITED, AddressSpaceReserve, code_bytes
from onefold.retraining.memory_monitor import ProcessMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
MB = 10**6

BEFORE = """
import json, mmap, resource, time
from onefold.retraining.memory_monitor import ProcessMemory
from onefold.retraining.address_space_reserve import SIZE
memory = ProcessMemory()

def status():
    return memory._status()

def lower(by):
    resource.setrlimit(resource.RLIMIT_DATA, (status()["VmData"] - by, resource.RLIM_INFINITY))

def mapped(size, prot=mmap.PROT_READ | mmap.PROT_WRITE):
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=prot)

def until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()
"""


def run(script: str) -> list[int]:
    """The numbers that a process of its own prints; its limits are nobody else's."""
    words = [sys.executable, "-c", BEFORE + textwrap.dedent(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_it_is_mapped_but_no_memory() -> None:
    before, held, used = run("""
        was = status()
        memory.open()
        now = status()
        print(was["VmData"], now["VmData"], now["VmRSS"] - was["VmRSS"])
    """)
    assert held - before >= SIZE
    assert used < SIZE // 8


def test_a_limit_that_falls_is_met_at_once_and_asks_for_as_much_memory() -> None:
    used, allowed, below = run("""
        memory.open()
        used = memory.used()
        lower(3_000_000)
        until(lambda: memory.spare._fell is not None)
        more = mapped(30_000_000)  # which code would have been refused
        print(used, memory.limit(), resource.getrlimit(resource.RLIMIT_DATA)[0] - status()["VmData"])
    """)
    assert allowed == pytest.approx(used - 3 * MB, abs=2 * MB)
    assert below > 0


def test_what_is_given_up_does_not_make_room_for_more_memory() -> None:
    used, allowed = run("""
        memory.open()
        used = memory.used()
        lower(-3_000_000)  # so much is left
        until(lambda: memory.spare._fell is not None)
        print(used, memory.limit())
    """)
    assert allowed == pytest.approx(used + 3 * MB, abs=2 * MB)


def test_a_limit_that_is_raised_again_asks_for_nothing() -> None:
    fell, raised = run("""
        memory.open()
        lower(3_000_000)
        until(lambda: memory.spare._fell is not None)
        fell = memory.limit()
        resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))
        print(fell, memory.limit())
    """)
    assert raised > fell + SIZE


def test_a_limit_from_the_beginning_leaves_room_for_code() -> None:
    before, opened, written = run("""
        lower(-100_000_000)
        before = memory.limit()
        memory.open()
        opened = memory.limit()
        code = mapped(30 * 2**20, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        print(before, opened, memory.limit())
    """)
    assert before - opened == pytest.approx(CODE, abs=2 * MB)
    assert written == pytest.approx(opened, abs=2 * MB)  # what was left for it has been used


def test_nothing_is_held_after_it_is_closed() -> None:
    held, closed = run("""
        memory.open()
        held = status()["VmData"]
        memory.close()
        print(held, status()["VmData"])
    """)
    assert held - closed >= SIZE * 3 // 4
    AddressSpaceReserve(dict).close()  # and nothing happens where nothing was held


def test_no_limit_allows_everything() -> None:
    memory = ProcessMemory()
    assert memory.spare.allowed() == UNLIMITED
    assert code_bytes() >= 0
