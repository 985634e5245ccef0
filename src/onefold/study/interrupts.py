"""Ctrl-C, SIGTERM and SIGHUP, handled between two steps of the main loop."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

from onefold.processes import handle_interrupts, restore_handlers


class Interrupts:
    """A context manager that defers signals: `check` raises KeyboardInterrupt once one has arrived.

    A second signal raises at once. The previous handlers are called too, but what they raise is deferred; they are
    restored at the end. Outside the main thread, where signals cannot be caught, nothing changes.
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
        previous = self._previous.get(signal.Signals(number))
        if callable(previous) and previous is not signal.default_int_handler:
            with suppress(KeyboardInterrupt):
                previous(number, None)  # without a frame: what is interrupted goes on
        if self._is_requested:
            self.is_urgent = True
            raise KeyboardInterrupt
        self._is_requested = True

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = handle_interrupts(self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        restore_handlers(self._previous)
