"""Performance counters of this process by perf_event_open; hardware events need a PMU."""

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
MAX_FILES = 256  # each counter of each thread is an open file
_READ, _DATA, _LAST_LEVEL, _MISS = 0, 0, 2, 1  # parts of a cache event's config


@dataclass(frozen=True, slots=True)
class PerfEvent:
    """An event that the kernel counts: `kind` and `number` are its type and config in perf_event_attr."""

    name: str
    kind: int
    number: int


EVENTS = (
    PerfEvent("cycles", HARDWARE, 0),
    PerfEvent("instructions", HARDWARE, 1),
    PerfEvent("cache_references", HARDWARE, 2),
    PerfEvent("cache_misses", HARDWARE, 3),
    PerfEvent("branch_instructions", HARDWARE, 4),
    PerfEvent("branch_misses", HARDWARE, 5),
    PerfEvent("bus_cycles", HARDWARE, 6),
    PerfEvent("stalled_cycles_frontend", HARDWARE, 7),
    PerfEvent("stalled_cycles_backend", HARDWARE, 8),
    PerfEvent("l1d_loads", CACHE, _DATA | _READ << 8),
    PerfEvent("l1d_load_misses", CACHE, _DATA | _READ << 8 | _MISS << 16),
    PerfEvent("llc_loads", CACHE, _LAST_LEVEL | _READ << 8),
    PerfEvent("llc_load_misses", CACHE, _LAST_LEVEL | _READ << 8 | _MISS << 16),
    PerfEvent("task_clock_ns", SOFTWARE, 1),
    PerfEvent("page_faults", SOFTWARE, 2),
    PerfEvent("context_switches", SOFTWARE, 3),
    PerfEvent("cpu_migrations", SOFTWARE, 4),
    PerfEvent("minor_faults", SOFTWARE, 5),
    PerfEvent("major_faults", SOFTWARE, 6),
)
HARDWARE_EVENTS = frozenset(event.name for event in EVENTS if event.kind != SOFTWARE)


class _Attributes(ctypes.Structure):
    """struct perf_event_attr in its first version, which every kernel supports."""

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


_TIMES = 0b11  # read_format: time enabled and time running
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6


class Counters:
    """Count events of all threads of this process, and of those they start, from `__enter__` on.

    Events that this machine lacks are left out; see `available`. If the hardware has fewer counters than there are
    events, the kernel multiplexes them, and counts are scaled by `time_enabled / time_running`.
    """

    def __init__(self, events: Iterable[PerfEvent] = EVENTS) -> None:
        self._events = tuple(events)
        self._open: dict[str, list[int]] = {}

    @property
    def available(self) -> tuple[str, ...]:
        """Return the names of the events that are counted."""
        return tuple(self._open)

    def __enter__(self) -> Counters:
        threads = [int(path.name) for path in Path("/proc/self/task").iterdir()] if platform.system() == "Linux" else []
        for event in self._few_enough(len(threads)):
            descriptors = [number for thread in threads if (number := _opened(event, thread)) >= 0]
            if len(descriptors) == len(threads):
                self._open[event.name] = descriptors
            else:
                _close(descriptors)
        return self

    def _few_enough(self, threads: int) -> list[PerfEvent]:
        """Return software events first, and few enough to leave the process descriptors for its own files."""
        room = MAX_FILES // max(1, threads)
        return sorted(self._events, key=lambda event: event.kind != SOFTWARE)[:room]

    def __exit__(self, *exc: object) -> None:
        _close([number for numbers in self._open.values() for number in numbers])
        self._open = {}

    def read(self) -> dict[str, float]:
        """Return the counts so far."""
        return {name: sum(map(_scaled, numbers)) for name, numbers in self._open.items()}


def _close(numbers: Iterable[int]) -> None:
    for number in numbers:
        with suppress(OSError):
            os.close(number)


def _opened(event: PerfEvent, thread: int) -> int:
    """Return the descriptor of a counter, or -1 if it is not available."""
    call = SYSCALL.get(platform.machine())
    if call is None:
        return -1
    attributes = _Attributes(type=event.kind, size=ctypes.sizeof(_Attributes), config=event.number)
    attributes.read_format, attributes.flags = _TIMES, _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.syscall(call, ctypes.byref(attributes), thread, -1, -1, 1 << 3))  # PERF_FLAG_FD_CLOEXEC


def scaled(count: int, enabled_ns: int, running_ns: int) -> float:
    """Extrapolate a multiplexed count to the whole time."""
    return count * enabled_ns / running_ns if running_ns else 0.0


def _scaled(number: int) -> float:
    return scaled(*struct.unpack("QQQ", os.read(number, 24)))
