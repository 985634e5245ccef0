"""The signals that ask a program to stop: Ctrl-C, `kill`, and the end of its terminal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

INTERRUPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
SignalHandler = Callable[[int, FrameType | None], Any]


def handle_interrupts(handler: SignalHandler) -> dict[signal.Signals, Any]:
    """Install a handler for all of them; return the previous handlers, for `restore_handlers`.

    A hang-up that is ignored, as by `nohup`, stays ignored. Only the main thread may call this.
    """
    previous: dict[signal.Signals, Any] = {}
    for number in INTERRUPT_SIGNALS:
        if number is signal.SIGINT or number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, handler)
    return previous


def restore_handlers(previous: dict[signal.Signals, Any]) -> None:
    """Install the handlers that `handle_interrupts` replaced."""
    for number, handler in previous.items():
        if handler is not None:  # None: not set from Python, so it cannot be restored
            signal.signal(number, handler)
