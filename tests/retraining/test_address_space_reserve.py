"""Reserved address space takes no memory and is released when a limit on the process falls."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from onefold.meter.free_memory import UNLIMITED
from onefold.retraining.address_space_reserve import (
    CODE_BYTES,
    RESERVED_BYTES,
    AddressSpaceReserve,
    mapped_code_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
MB = 10**6

BEFORE = """
import mmap, resource, time
from pathlib import Path
from onefold.retraining.address_space_reserve import AddressSpaceReserve

def status():
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Vm"))
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in lines}

reserve = AddressSpaceReserve(status)

def lower(by):
    resource.setrlimit(resource.RLIMIT_DATA, (status()["VmData"] - by, resource.RLIM_INFINITY))

def mapped(size, prot=mmap.PROT_READ | mmap.PROT_WRITE):
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=prot)

def until(condition):
    end = time.monotonic() + 240
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()
"""


def run(script: str) -> list[int]:
    """Return the numbers that a new process prints: its limits affect no other test."""
    words = [sys.executable, "-c", BEFORE + textwrap.dedent(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_the_reserve_is_mapped_but_takes_no_memory() -> None:
    before, held, used = run("""
        was = status()
        reserve.hold()
        now = status()
        print(was["VmData"], now["VmData"], now["VmRSS"] - was["VmRSS"])
    """)
    assert held - before >= RESERVED_BYTES
    assert used < RESERVED_BYTES // 8


def test_a_fallen_limit_releases_the_reserve_and_lowers_the_allowed_memory() -> None:
    used, allowed, below = run("""
        reserve.hold()
        used = status()["VmRSS"]
        lower(3_000_000)
        until(lambda: reserve._fallen is not None)
        more = mapped(30_000_000)  # would be refused without the reserve
        print(used, reserve.allowed(), resource.getrlimit(resource.RLIMIT_DATA)[0] - status()["VmData"])
    """)
    assert allowed == pytest.approx(used - 3 * MB, abs=2 * MB)
    assert below > 0


def test_the_released_reserve_does_not_allow_more_memory() -> None:
    used, allowed = run("""
        reserve.hold()
        used = status()["VmRSS"]
        lower(-3_000_000)  # bytes are left
        until(lambda: reserve._fallen is not None)
        print(used, reserve.allowed())
    """)
    assert allowed == pytest.approx(used + 3 * MB, abs=2 * MB)


def test_a_limit_that_is_raised_again_allows_more() -> None:
    fell, raised = run("""
        reserve.hold()
        lower(3_000_000)
        until(lambda: reserve._fallen is not None)
        fell = reserve.allowed()
        resource.setrlimit(resource.RLIMIT_DATA, (2**40, resource.RLIM_INFINITY))
        print(fell, reserve.allowed())
    """)
    assert raised > fell + RESERVED_BYTES


def test_an_initial_limit_leaves_room_for_code() -> None:
    before, opened, written = run("""
        lower(-100_000_000)
        before = reserve.allowed()
        reserve.hold()
        opened = reserve.allowed()
        code = mapped(30 * 2**20, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        print(before, opened, reserve.allowed())
    """)
    assert before - opened == pytest.approx(CODE_BYTES, abs=2 * MB)
    assert written == pytest.approx(opened, abs=2 * MB)  # the room for code has been used


def test_close_releases_the_reserve() -> None:
    held, closed = run("""
        reserve.hold()
        held = status()["VmData"]
        reserve.close()
        print(held, status()["VmData"])
    """)
    assert held - closed >= RESERVED_BYTES * 3 // 4
    AddressSpaceReserve(dict).close()  # has no effect if nothing was held


def test_without_limits_everything_is_allowed() -> None:
    assert AddressSpaceReserve(dict).allowed() == UNLIMITED
    assert mapped_code_bytes() >= 0
