"""Contention: how much longer work takes than its processor time, because others use the machine too.

Evaluations of a small network take milliseconds: if another process runs in between, one of them seems
a hundred times slower. The time of this thread, whatever it does, over its processor time is steady within seconds.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise

from onefold.retraining.time_window import Clock

INTERVAL_S = 1.0  # at least: several time slices of the scheduler
INTERVALS = 5  # that count


class Contention:
    """The ratio of time to processor time of the calling thread, in the last seconds."""

    def __init__(self, clock: Clock = time.monotonic, processor_clock: Clock = time.thread_time) -> None:
        """`processor_clock` returns the processor seconds of the calling thread."""
        self._clock, self._processor_clock = clock, processor_clock
        self._marks = [(clock(), processor_clock())]

    def note(self) -> None:
        """End an interval, if the present one is long enough."""
        mark = self._clock(), self._processor_clock()
        if mark[0] - self._marks[-1][0] >= INTERVAL_S:
            self._marks = [*self._marks, mark][-INTERVALS - 1 :]

    @property
    def factor(self) -> float:
        """How many times longer than on an idle machine work takes; at least 1."""
        return _ratio(self._marks[0], (self._clock(), self._processor_clock()))

    @property
    def scatter(self) -> float:
        """The highest contention of any interval relative to that of all; at least 1."""
        if len(self._marks) < 2:
            return 1.0
        return max(_ratio(*pair) for pair in pairwise(self._marks)) / _ratio(self._marks[0], self._marks[-1])


def _ratio(first: tuple[float, float], last: tuple[float, float]) -> float:
    elapsed_s, busy_s = last[0] - first[0], last[1] - first[1]
    return max(1.0, elapsed_s / busy_s) if busy_s > 0 and math.isfinite(elapsed_s) else 1.0
