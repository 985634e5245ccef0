"""The time window of a retraining."""

from __future__ import annotations

import time
from collections.abc import Callable

from onefold.retraining.control import RetrainingControl

Clock = Callable[[], float]  # seconds that only ever increase


class TimeWindow:
    """A window that opens on construction, or at `started_at` on the clock; nothing trains in the last `reserve_s`."""

    def __init__(
        self,
        length_s: float,
        started_at: float | None = None,
        clock: Clock = time.monotonic,
        control: RetrainingControl | None = None,
    ) -> None:
        """`control` may change the length, or end the window, at any time."""
        self.reserve_s = 0.0  # to evaluate and to save the model
        self._given_s = length_s
        self._clock = clock
        self._started_at = clock() if started_at is None else started_at
        self._control = control or RetrainingControl()

    @property
    def length_s(self) -> float:
        """The length of the window, as of now."""
        self._control.refresh()
        return self._given_s if self._control.window_s is None else self._control.window_s

    @property
    def is_stopped(self) -> bool:
        """Whether the retraining was asked to end."""
        self._control.refresh()
        return self._control.is_stopped

    @property
    def elapsed_s(self) -> float:
        """Seconds since the window opened."""
        return self._clock() - self._started_at

    @property
    def elapsed_share(self) -> float:
        """Share of the window that has elapsed."""
        return self.elapsed_s / self.length_s

    @property
    def left_s(self) -> float:
        """Seconds left for training."""
        return 0.0 if self.is_stopped else self.length_s - self.elapsed_s - self.reserve_s
