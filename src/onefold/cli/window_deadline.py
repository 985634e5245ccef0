"""End `onefold retrain` exactly when its window is over, if no training has begun by then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from onefold.vocabulary.quantities import duration
from onefold.vocabulary.retraining import PhaseStarted, PlansFound, RetrainingEvent

if TYPE_CHECKING:
    from onefold.retraining.time_window import TimeWindow

EXIT_CODE = 2  # bad input
SHORTEST_S = 0.001  # of a timer; 0 would switch it off


class WindowDeadline:
    """End the process when its window is over before plans were found. Nothing has been changed until then."""

    def __init__(self, window: TimeWindow) -> None:
        self.window = window
        self._phase = "loading the model"

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Watch the window inside the block. Only the main thread may enter it."""
        previous = signal.signal(signal.SIGALRM, self._check)
        self._set_timer()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def on_event(self, event: RetrainingEvent) -> None:
        """Note the phase; training may take what is left of the window."""
        if isinstance(event, PhaseStarted):
            self._phase = event.phase
        elif isinstance(event, PlansFound):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _set_timer(self) -> None:
        if self.window.length_s > 0:  # else it is refused as invalid
            signal.setitimer(signal.ITIMER_REAL, max(SHORTEST_S, self.window.length_s - self.window.elapsed_s))

    def _check(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of signal handlers
        if self.window.is_stopped:
            return  # it ends at the next step, with the given model
        if self.window.elapsed_s < self.window.length_s:  # it was changed meanwhile
            self._set_timer()
            return
        window = duration(self.window.length_s)
        message = f"the window of {window} is over, and {self._phase} was not done; give --window more time"
        os.write(2, f"onefold: {message}\n".encode())
        os._exit(EXIT_CODE)  # an exception in the middle of an import may be swallowed, or crash a native module
