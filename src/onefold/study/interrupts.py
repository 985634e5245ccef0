"""Ctrl-C and SIGTERM, handled between two steps of the main loop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context manager that defers signals: `check` raises KeyboardInterrupt once one has arrived.

    A second signal raises at once. The previous handlers are restored at the end. Outside the main thread, where
    signals cannot be caught, nothing changes.
    """

    def __init__(self) -> None:
        self.is_urgent = False  # whether a second signal arrived
        self._is_requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has arrived."""
        if self._is_requested:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of signal handlers
        if self._is_requested:
            self.is_urgent = True
            raise KeyboardInterrupt
        self._is_requested = True

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # None: not set from Python, so it cannot be restored
                signal.signal(number, handler)
