"""Event counters of this process, as the kernel's perf_event_open gives them: of the hardware where there is a PMU."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
HARDWARE, SOFTWARE, CACHE = 0, 1, 3
MOST_FILES = 256  # a counter of one thread is an open file
_READ, _DATA, _LAST_LEVEL, _MISS = 0, 0, 2, 1  # parts of a cache event's number


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the kernel counts."""

    name: str
    kind: int
    number: int


EVENTS = (
    Event("cycles", HARDWARE, 0),
    Event("instructions", HARDWARE, 1),
    Event("cache_references", HARDWARE, 2),
    Event("cache_misses", HARDWARE, 3),
    Event("branch_instructions", HARDWARE, 4),
    Event("branch_misses", HARDWARE, 5),
    Event("bus_cycles", HARDWARE, 6),
    Event("stalled_cycles_frontend", HARDWARE, 7),
    Event("stalled_cycles_backend", HARDWARE, 8),
    Event("l1d_loads", CACHE, _DATA | _READ << 8),
    Event("l1d_load_misses", CACHE, _DATA | _READ << 8 | _MISS << 16),
    Event("llc_loads", CACHE, _LAST_LEVEL | _READ << 8),
    Event("llc_load_misses", CACHE, _LAST_LEVEL | _READ << 8 | _MISS << 16),
    Event("task_clock_ns", SOFTWARE, 1),
    Event("page_faults", SOFTWARE, 2),
    Event("context_switches", SOFTWARE, 3),
    Event("cpu_migrations", SOFTWARE, 4),
    Event("minor_faults", SOFTWARE, 5),
    Event("major_faults", SOFTWARE, 6),
)
HARDWARE_EVENTS = frozenset(event.name for event in EVENTS if event.kind != SOFTWARE)


class _Attributes(ctypes.Structure):
    """The first version of the kernel's struct perf_event_attr, which every kernel understands."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("bp_addr", ctypes.c_uint64),
    )


_TIMES = 0b11  # read_format: also how long the event was enabled and how long it was counted
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6


class Counters:
    """Counts events of all threads of this process, and of those they start, from `__enter__` on.

    An event that this machine does not have is left out: `available` says which are there. When the hardware has fewer
    counters than there are events, the kernel counts each a part of the time; what it missed is made up by
    `count * time_enabled / time_running`.
    """

    def __init__(self, events: Iterable[Event] = EVENTS) -> None:
        self._events = tuple(events)
        self._open: dict[str, list[int]] = {}

    @property
    def available(self) -> tuple[str, ...]:
        """The events that are counted."""
        return tuple(self._open)

    def __enter__(self) -> Counters:
        threads = [int(path.name) for path in Path("/proc/self/task").iterdir()] if platform.system() == "Linux" else []
        for event in self._few_enough(len(threads)):
            found = [number for thread in threads if (number := _opened(event, thread)) >= 0]
            if len(found) == len(threads):
                self._open[event.name] = found
            else:
                _close(found)
        return self

    def _few_enough(self, threads: int) -> list[Event]:
        """Software events first, and no more than leave the process room for files of its own."""
        room = MOST_FILES // max(1, threads)
        return sorted(self._events, key=lambda event: event.kind != SOFTWARE)[:room]

    def __exit__(self, *exc: object) -> None:
        _close([number for numbers in self._open.values() for number in numbers])
        self._open = {}

    def read(self) -> dict[str, float]:
        """The counts so far."""
        return {name: sum(map(_scaled, numbers)) for name, numbers in self._open.items()}


def _close(numbers: Iterable[int]) -> None:
    for number in numbers:
        with suppress(OSError):
            os.close(number)


def _opened(event: Event, thread: int) -> int:
    """The file of a counter, -1 where it cannot be had."""
    call = SYSCALL.get(platform.machine())
    if call is None:
        return -1
    attributes = _Attributes(type=event.kind, size=ctypes.sizeof(_Attributes), config=event.number)
    attributes.read_format, attributes.flags = _TIMES, _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.syscall(call, ctypes.byref(attributes), thread, -1, -1, 1 << 3))  # closed on exec


def scaled(count: int, enabled_ns: int, running_ns: int) -> float:
    """What a count would have been, had its event been counted all the time."""
    return count * enabled_ns / running_ns if running_ns else 0.0


def _scaled(number: int) -> float:
    return scaled(*struct.unpack("QQQ", os.read(number, 24)))
