"""Contention: how much longer work takes than its processor time, because others use the machine too.

Evaluations of a small network take milliseconds: if another process runs in between, one of them seems a hundred times
slower. Whatever the thread does, the time in which it was ready to run over that in which it ran is steady within
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

ProcessorTimes = Callable[[], tuple[float, float]]  # seconds in which a thread was ready to run, and in which it ran
SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")  # nanoseconds running, and waiting for a processor
INTERVAL_S = 1.0  # at least: several time slices of the scheduler
INTERVALS = 5  # that count


class Contention:
    """How much longer the work of the calling thread has taken in the last seconds than its processor time."""

    def __init__(self, times: ProcessorTimes) -> None:
        self._times = times
        self._marks = [times()]

    def note(self) -> None:
        """End an interval, if the present one is long enough."""
        mark = self._times()
        if mark[0] - self._marks[-1][0] >= INTERVAL_S:
            self._marks = [*self._marks, mark][-INTERVALS - 1 :]

    @property
    def factor(self) -> float:
        """How many times longer than on an idle machine work takes; at least 1."""
        return _ratio(self._marks[0], self._times())

    @property
    def scatter(self) -> float:
        """The highest contention of any interval relative to that of all; at least 1."""
        if len(self._marks) < 2:
            return 1.0
        return max(_ratio(*pair) for pair in pairwise(self._marks)) / _ratio(self._marks[0], self._marks[-1])


def thread_times() -> tuple[float, float]:
    """Return the seconds in which the calling thread was ready to run, and those in which it ran.

    Where the system does not tell what a thread waits for, it counts as ready all the time, also while a disk is read.
    """
    ran_s = time.thread_time()
    try:
        known_ns, waited_ns, *_ = (int(field) for field in SCHEDULER_STATISTICS.read_bytes().split())
    except (OSError, ValueError):
        known_ns = waited_ns = 0
    return (ran_s + waited_ns / 1e9 if known_ns else time.monotonic()), ran_s


def _ratio(first: tuple[float, float], last: tuple[float, float]) -> float:
    ready_s, ran_s = last[0] - first[0], last[1] - first[1]
    return max(1.0, ready_s / ran_s) if ran_s > 0 else 1.0
