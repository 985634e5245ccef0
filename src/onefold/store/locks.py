"""Locks that end with the process that holds them."""

from __future__ import annotations

import fcntl
import time
from typing import IO

PATIENCE_S = 0.5  # whoever looks whether a lock is held holds it for a moment
_LOOK_EVERY_S = 0.02


def locked(file: IO[str], patience_s: float = PATIENCE_S) -> bool:
    """Takes the lock of an open file; False when another process keeps it."""
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_EVERY_S)
