"""The time window of a retraining."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]  # seconds that only ever increase


class TimeWindow:
    """A window that opens on construction, or at `started_at` on the clock; nothing trains in the last `reserve_s`."""

    def __init__(self, length_s: float, started_at: float | None = None, clock: Clock = time.monotonic) -> None:
        self.length_s = length_s
        self.reserve_s = 0.0  # to evaluate and to save the model
        self._clock = clock
        self._started_at = clock() if started_at is None else started_at

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the window opened."""
        return self._clock() - self._started_at

    @property
    def elapsed_share(self) -> float:
        """Return the share of the window that has elapsed."""
        return self.elapsed_s / self.length_s

    @property
    def left_s(self) -> float:
        """Return the seconds left for training."""
        return self.length_s - self.elapsed_s - self.reserve_s
