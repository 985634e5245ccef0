"""Ctrl-C and SIGTERM, answered between two steps and not in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """`with Interrupts() as interrupts:` … `interrupts.check()` raises KeyboardInterrupt once a signal has come.

    A second signal is answered at once. The handlers that were found are put back. Outside the main thread signals
    cannot be caught, and nothing changes.
    """

    def __init__(self) -> None:
        self.hurried = False  # whether a second signal came, by somebody who will not wait
        self._asked = False
        self._found: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Raises KeyboardInterrupt when somebody has asked to stop."""
        if self._asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of handlers
        if self._asked:
            self.hurried = True
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._found = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._found.items():
            if handler is not None:  # None: not set from Python, and not ours to put back
                signal.signal(number, handler)
