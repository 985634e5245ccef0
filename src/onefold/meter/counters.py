"""Performance counters of this process by perf_event_open; hardware events need a PMU."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SYSCALL = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
HARDWARE, SOFTWARE, CACHE = 0, 1, 3
MAX_FILES = 256  # that are open at once: each counter of each thread is a file
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
# Events of a group are counted at the same time, so that their ratios are exact.
GROUPS = (
    ("task_clock_ns", "page_faults", "context_switches", "cpu_migrations", "minor_faults", "major_faults"),
    ("cycles", "instructions", "stalled_cycles_frontend", "stalled_cycles_backend"),
    ("cache_references", "cache_misses"),
    ("branch_instructions", "branch_misses"),
    ("l1d_loads", "l1d_load_misses"),
    ("llc_loads", "llc_load_misses"),
    ("bus_cycles",),
)
BY_NAME = {event.name: event for event in EVENTS}
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
    events, the kernel multiplexes them, and counts are scaled by `time_enabled / time_running`. If the process has so
    many threads that not all groups of events can be open at once, call `rotate` now and then to count the next ones;
    the counts of each group are extrapolated to the whole time.
    """

    def __init__(self, groups: Sequence[Sequence[str]] = GROUPS, max_files: int = MAX_FILES) -> None:
        self._groups = tuple(tuple(BY_NAME[name] for name in names) for names in groups)
        self._max_files = max_files
        self._open: dict[str, list[int]] = {}
        self._counts: defaultdict[str, float] = defaultdict(float)  # of groups that are closed
        self._counted_s: defaultdict[str, float] = defaultdict(float)
        self._next = 0  # group to open
        self._are_all_open = False
        self._groups_opened = 0
        self._entered = self._opened = 0.0

    @property
    def available(self) -> tuple[str, ...]:
        """Return the names of the events that were counted so far."""
        return tuple(dict.fromkeys([*self._counts, *self._open]))

    @property
    def has_counted_all(self) -> bool:
        """Return whether every group of events was counted, if only for some of the time."""
        return self._groups_opened >= len(self._groups)

    def __enter__(self) -> Counters:
        self._entered = time.perf_counter()
        self._open_groups()
        return self

    def rotate(self) -> None:
        """Count the next groups of events, unless all of them fit."""
        if not self._are_all_open:
            self._close_groups()
            self._open_groups()

    def __exit__(self, *exc: object) -> None:
        self._close_groups()
        self._counts.clear()
        self._counted_s.clear()

    def read(self) -> dict[str, float]:
        """Return the counts so far."""
        now = time.perf_counter()
        total_s = now - self._entered
        counts = {}
        for name in self.available:
            is_open = name in self._open
            count = self._counts[name] + (sum(map(_scaled, self._open[name])) if is_open else 0.0)
            counted_s = self._counted_s[name] + (now - self._opened if is_open else 0.0)
            counts[name] = count * total_s / counted_s if counted_s > 0 else 0.0
        return counts

    def _open_groups(self) -> None:
        """Open as many groups as fit, from the next one on and at least one."""
        threads = _threads()
        files, self._opened = 0, time.perf_counter()
        for _ in self._groups:
            group = self._groups[self._next]
            if files and files + len(group) * len(threads) > self._max_files:
                return
            self._next = (self._next + 1) % len(self._groups)
            self._groups_opened += 1
            for event in group:
                if descriptors := _opened_for(event, threads):
                    self._open[event.name] = descriptors
                    files += len(descriptors)
        self._are_all_open = True

    def _close_groups(self) -> None:
        counted_s = time.perf_counter() - self._opened
        for name, numbers in self._open.items():
            self._counts[name] += sum(map(_scaled, numbers))
            self._counted_s[name] += counted_s
        _close([number for numbers in self._open.values() for number in numbers])
        self._open = {}


def _threads() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/task").iterdir()] if platform.system() == "Linux" else []


def _close(numbers: Iterable[int]) -> None:
    for number in numbers:
        with suppress(OSError):
            os.close(number)


def _opened_for(event: PerfEvent, threads: Iterable[int]) -> list[int]:
    """Return the descriptors of an event's counters, one per thread that still runs; none if it is not available."""
    numbers = [number for thread in threads if (number := _opened(event, thread)) != -errno.ESRCH]
    descriptors = [number for number in numbers if number >= 0]
    if len(descriptors) == len(numbers):
        return descriptors
    _close(descriptors)
    return []


def _opened(event: PerfEvent, thread: int) -> int:
    """Return the descriptor of a counter, or the negative errno if it is not available."""
    call = SYSCALL.get(platform.machine())
    if call is None:
        return -errno.ENOSYS
    attributes = _Attributes(type=event.kind, size=ctypes.sizeof(_Attributes), config=event.number)
    attributes.read_format, attributes.flags = _TIMES, _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    library = ctypes.CDLL(None, use_errno=True)
    number = int(library.syscall(call, ctypes.byref(attributes), thread, -1, -1, 1 << 3))  # PERF_FLAG_FD_CLOEXEC
    return number if number >= 0 else -ctypes.get_errno()


def scaled(count: int, enabled_ns: int, running_ns: int) -> float:
    """Extrapolate a multiplexed count to the whole time."""
    return count * enabled_ns / running_ns if running_ns else 0.0


def _scaled(number: int) -> float:
    return scaled(*struct.unpack("QQQ", os.read(number, 24)))
