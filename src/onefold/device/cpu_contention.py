"""Whether other programs took the processor away while something was timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

NEGLIGIBLE = 0.05  # a share that no measurement is free of
LONG_S = 0.2  # what a host took is told in hundredths of a second: too coarse for less than this
_THREADS, _PROCESSORS = Path("/proc/self/task"), Path("/proc/stat")
_STOLEN = 8  # the column of a processor's line: ticks that a virtual machine was kept from running


class CpuContention:
    """How long the threads of this process were ready to run and were not let run: `with Waiting(threads) as waiting`.

    `waiting.share` is that time as a share of the time that so many threads had, 0 where the system does not tell. It
    counts what the scheduler gave to others and, for longer spells, what a virtual machine's host took.
    """

    share = 0.0

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def __enter__(self) -> CpuContention:
        self._before, self._stolen_s, self._began_s = _of_threads(), _stolen_s(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        passed_s = time.perf_counter() - self._began_s
        waited_s = 0.0
        for thread, (waited_ns, interrupted) in _of_threads().items():
            before_ns, before = self._before.get(thread, (waited_ns, interrupted))
            if interrupted > before:  # one that was never interrupted waited for nothing but its own waking up
                waited_s += (waited_ns - before_ns) / 1e9
        if passed_s >= LONG_S:
            waited_s += _stolen_s() - self._stolen_s
        self.share = min(1.0, max(0.0, waited_s) / (passed_s * self._threads)) if passed_s > 0 else 0.0


def _of_threads() -> dict[str, tuple[int, int]]:
    """Of each thread: the nanoseconds that it waited for a core, and how often a core was taken from it."""
    found = {}
    for folder in _THREADS.glob("*"):
        try:
            waited_ns = int((folder / "schedstat").read_text().split()[1])
            lines = (folder / "status").read_text().splitlines()
            interrupted = next(int(line.split()[1]) for line in lines if line.startswith("nonvoluntary_ctxt_switches"))
        except (OSError, IndexError, ValueError, StopIteration):  # it has ended, or the system keeps no such record
            continue
        found[folder.name] = waited_ns, interrupted
    return found


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
