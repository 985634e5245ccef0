"""CPU contention: how much CPU time other programs took while something was timed."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

NEGLIGIBLE = 0.05  # a share of contention that every measurement has
MIN_STEAL_WINDOW_S = 0.2  # steal time is counted in ticks of 10 ms: too coarse for shorter windows
_THREADS, _CPU_STATS = Path("/proc/self/task"), Path("/proc/stat")
_STEAL = 8  # column of a CPU's line in /proc/stat: ticks that the hypervisor gave to other guests


class CpuContention:
    """Measure how long threads of this process were runnable but not running: `with CpuContention(n) as contention`.

    `contention.share` is that time divided by the time available to `threads` threads; 0 where the system does not
    report it. It includes preemption by the scheduler and, for longer windows, steal time of a virtual machine.
    """

    share = 0.0

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def __enter__(self) -> CpuContention:
        self._before, self._steal_s, self._start_s = _run_queue_waits(), _steal_s(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        elapsed_s = time.perf_counter() - self._start_s
        waited_s = 0.0
        for thread, (waited_ns, preemptions) in _run_queue_waits().items():
            waited_before_ns, preemptions_before = self._before.get(thread, (waited_ns, preemptions))
            if preemptions > preemptions_before:  # a thread that was never preempted only waited for its own wake-up
                waited_s += (waited_ns - waited_before_ns) / 1e9
        if elapsed_s >= MIN_STEAL_WINDOW_S:
            waited_s += _steal_s() - self._steal_s
        self.share = min(1.0, max(0.0, waited_s) / (elapsed_s * self._threads)) if elapsed_s > 0 else 0.0


def busy_share(cores: Collection[int], seconds: float = 0.1) -> float:
    """Return the share of these cores that is busy over a short time; 0 where the system does not report it."""
    before = _core_ticks(cores)
    time.sleep(seconds)
    after = _core_ticks(cores)
    total = sum(after[core][0] - before[core][0] for core in after if core in before)
    idle = sum(after[core][1] - before[core][1] for core in after if core in before)
    return 1 - idle / total if total > 0 else 0.0


def _core_ticks(cores: Collection[int]) -> dict[str, tuple[int, int]]:
    """Return the ticks of each core, and those in which it was idle or waited for a disk."""
    names = {f"cpu{core}" for core in cores}
    try:
        rows = [line.split() for line in _CPU_STATS.read_text().splitlines()]
        ticks = {row[0]: [int(value) for value in row[1:]] for row in rows if row and row[0] in names}
    except (OSError, ValueError):
        return {}
    return {core: (sum(values[:_STEAL]), values[3] + values[4]) for core, values in ticks.items() if len(values) > 4}


def _run_queue_waits() -> dict[str, tuple[int, int]]:
    """Return, for each thread, the nanoseconds spent waiting for a core and the number of preemptions."""
    waits = {}
    for folder in _THREADS.glob("*"):
        try:
            waited_ns = int((folder / "schedstat").read_text().split()[1])
            lines = (folder / "status").read_text().splitlines()
            preemptions = next(int(line.split()[1]) for line in lines if line.startswith("nonvoluntary_ctxt_switches"))
        except (OSError, IndexError, ValueError, StopIteration):  # the thread ended, or the kernel has no schedstats
            continue
        waits[folder.name] = waited_ns, preemptions
    return waits


def _steal_s() -> float:
    if not hasattr(os, "sched_getaffinity"):
        return 0.0
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        rows = [line.split() for line in _CPU_STATS.read_text().splitlines()]
        ticks = sum(int(row[_STEAL]) for row in rows if row and row[0] in cores)
    except (OSError, IndexError, ValueError):
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK")
