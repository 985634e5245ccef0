"""The time that a retraining has."""

from __future__ import annotations

import time


class TimeWindow:
    """Opens when it is made, or opened at `began` on the monotonic clock. Its end is kept free for what must be."""

    def __init__(self, length_s: float, began: float | None = None) -> None:
        self.length_s = length_s
        self.reserve_s = 0.0  # for what comes after the training
        self._began = time.monotonic() if began is None else began

    @property
    def elapsed_s(self) -> float:
        """Since it opened."""
        return time.monotonic() - self._began

    @property
    def share(self) -> float:
        """How much of it is over."""
        return self.elapsed_s / self.length_s

    @property
    def left_s(self) -> float:
        """For training."""
        return self.length_s - self.elapsed_s - self.reserve_s
