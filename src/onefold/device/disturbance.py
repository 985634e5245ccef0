"""Whether other programs took the processor away while something was timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

UNDISTURBED = 0.05  # a share that no measurement is free of
LONG_S = 0.2  # what a host took is told in hundredths of a second: too coarse for less than this
_THREADS, _PROCESSORS = Path("/proc/self/task"), Path("/proc/stat")
_STOLEN = 8  # the column of a processor's line: ticks that a virtual machine was kept from running


class Waiting:
    """How long the threads of this process were ready to run and were not let run: `with Waiting(threads) as waiting`.

    `waiting.share` is that time as a share of the time that so many threads had, 0 where the system does not tell. It
    counts what the scheduler gave to others and, for longer spells, what a virtual machine's host took.
    """

    share = 0.0

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def __enter__(self) -> Waiting:
        self._queued_s, self._stolen_s, self._began_s = _queued_s(), _stolen_s(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        passed_s = time.perf_counter() - self._began_s
        waited_s = _queued_s() - self._queued_s
        if passed_s >= LONG_S:
            waited_s += _stolen_s() - self._stolen_s
        self.share = min(1.0, max(0.0, waited_s) / (passed_s * self._threads)) if passed_s > 0 else 0.0


def _queued_s() -> float:
    total_ns = 0
    for thread in _THREADS.glob("*/schedstat"):
        try:
            total_ns += int(thread.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # it has ended, or the system keeps no such record
            continue
    return total_ns / 1e9


def _stolen_s() -> float:
    if not hasattr(os, "sched_getaffinity"):
        return 0.0
    mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        rows = [line.split() for line in _PROCESSORS.read_text().splitlines()]
        ticks = sum(int(row[_STOLEN]) for row in rows if row and row[0] in mine)
    except (OSError, IndexError, ValueError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")
