"""A clock of a child that stands still while its parent pauses it.

The parent adds up the duration of all pauses in a page of memory that the child maps and subtracts from its clock.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from typing import IO

_TOTAL = struct.Struct("d")  # seconds
_page: mmap.mmap | None = None  # of this process, if it is a child


class PausedTime:
    """The duration of all pauses of a child, as its parent writes it."""

    def __init__(self) -> None:
        self._file = _open_file()
        self._file.write(_TOTAL.pack(0.0))
        self._file.flush()
        self._page = mmap.mmap(self._file.fileno(), _TOTAL.size)
        self._began: float | None = None

    def fileno(self) -> int:
        """Return the descriptor that the child inherits."""
        return self._file.fileno()

    def begin(self) -> None:
        """Begin a pause, unless there is one."""
        if self._began is None:
            self._began = time.perf_counter()

    def end(self) -> None:
        """Add the pause to the total. Call it before the child continues."""
        if self._began is not None and not self._page.closed:
            total = _read(self._page) + time.perf_counter() - self._began
            _TOTAL.pack_into(self._page, 0, total)
        self._began = None

    def close(self) -> None:
        """Release the page, which the child may still use."""
        self._page.close()
        self._file.close()


def follow_pauses(descriptor: int) -> None:
    """Let the clock of this process stand still in the pauses that its parent writes to this file."""
    global _page
    _page = mmap.mmap(descriptor, _TOTAL.size, access=mmap.ACCESS_READ)
    os.close(descriptor)  # not for its children


def paused_s() -> float:
    """Return how long the parent has paused this process so far."""
    return 0.0 if _page is None else _read(_page)


def running_s() -> float:
    """Return the seconds since any fixed time, without those in which the parent paused this process."""
    while True:
        paused, now = paused_s(), time.perf_counter()
        if paused_s() == paused:  # else there was a pause between the two readings
            return now - paused


def _open_file() -> IO[bytes]:
    """Open a file in memory, or a temporary one where the system has none."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("onefold-pauses"), "w+b")
    return tempfile.TemporaryFile()


def _read(page: mmap.mmap) -> float:
    (total,) = _TOTAL.unpack_from(page)
    return float(total)
