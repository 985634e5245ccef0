"""Changes to the limits of a running retraining: by a call from another thread or a signal handler, or by a file.

{"window": "10m", "memory": "400MB"}    the control file; each key is optional
{"stop": true}                          ends the retraining
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import parse_bytes, parse_seconds
from onefold.vocabulary.retraining import RetrainingLimits

POLL_S = 0.05
MAX_FILE_BYTES = 10_000
KEYS = ("window", "memory", "stop")


class RetrainingControl:
    """Change the window or the memory limit of a retraining while it runs, or end it with its best model so far.

    control = onefold.RetrainingControl()
    onefold.retrain(..., options=onefold.RetrainingOptions(control=control))     # in one thread
    control.set_window("5m")                                                     # in another one
    """

    def __init__(self, file: str | Path | None = None) -> None:
        """`file` is read again whenever it changes; it need not exist yet."""
        self.file = None if file is None else Path(file)
        self.window_s: float | None = None  # None for the given ones
        self.memory_bytes: int | None = None
        self.is_stopped = False
        self.problem = ""  # why the file was ignored
        self._read_at_s = float("-inf")
        self._stamp: tuple[int, int, int] | None = None

    def set_window(self, window: str | float) -> None:
        """Change the window; it still counts from the start of the retraining. Raises InputError for an invalid one."""
        seconds = parse_seconds(window)
        RetrainingLimits(1, seconds).check()
        self.window_s = seconds

    def set_memory(self, memory: str | float) -> None:
        """Change the memory limit. Raises InputError for an invalid one."""
        size = parse_bytes(memory)
        RetrainingLimits(size, 1.0).check()
        self.memory_bytes = size

    def stop(self) -> None:
        """End the retraining as if its window were over. Safe to call from a signal handler."""
        self.is_stopped = True

    def refresh(self) -> None:
        """Read the file again if it has changed; at most every POLL_S."""
        now_s = time.monotonic()
        if self.file is None or now_s - self._read_at_s < POLL_S:
            return
        self._read_at_s = now_s
        try:
            status = self.file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._apply(read_json(self.file, MAX_FILE_BYTES))
            self.problem = ""
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, InputError) as error:
            self.problem = f"{self.file} is ignored: {error}"

    def _apply(self, content: Any) -> None:
        if not isinstance(content, dict) or (unknown := sorted(content.keys() - {*KEYS})):
            given = f"key {unknown[0]!r}" if isinstance(content, dict) else type(content).__name__
            raise InputError(f"expected an object with window, memory or stop, got {given}")
        if "window" in content:
            self.set_window(content["window"])
        if "memory" in content:
            self.set_memory(content["memory"])
        if content.get("stop") is True:
            self.stop()
