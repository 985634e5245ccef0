"""A clock for retrainings in tests, whose course does not depend on the speed of the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onefold.vocabulary.retraining import MicroWindow


class TickingClock:
    """Advance by a fixed step at each reading. An update reads it about five times, a stage three times."""

    def __init__(self, step_s: float = 1e-3) -> None:
        self.step_s = step_s
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def end_after(self, micro_windows: int, window_s: float = 1.0) -> Callable[[Any], None]:
        """Return an `on_event` that lets the rest of the window elapse after so many micro-windows."""

        def on_event(event: Any) -> None:
            if isinstance(event, MicroWindow) and event.number >= micro_windows:
                self.now_s += window_s

        return on_event
