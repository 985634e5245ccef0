"""Peak memory of this process inside a window.

The system keeps one high-water mark for the whole process. Linux lets it be put back to the present level, after which
it tells the peak since. Each opening window does so, once what the mark said is credited to the windows open already.

Elsewhere the mark only ever rises: when it rises inside a window it is that window's peak, and when it does not the
peak is unknown, None.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CLEAR_HIGH_WATER = "5"  # proc(5)


def high_water_bytes() -> int | None:
    """The high-water mark of this process's resident memory; None where the system does not tell."""
    try:
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux, or /proc is hidden
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def put_mark_back() -> bool:
    """Lowers the high-water mark to the present level; False where the system does not let us."""
    try:
        _CLEAR.write_text(_CLEAR_HIGH_WATER)
    except OSError:
        return False
    return True


class Peak:
    """The peak of one window: what the mark showed, as far as that speaks of this window."""

    def __init__(self, floor: int) -> None:
        self.floor = floor  # a mark at or below it may be older than the window
        self.bytes: int | None = None

    def credit(self, mark: int | None) -> None:
        """Learns what the mark shows now."""
        if mark is not None and mark > self.floor:
            self.bytes = max(self.bytes or 0, mark)


class PeakMemory:
    """All open windows over one mark. They may nest and overlap, and several threads may open them."""

    def __init__(
        self, mark: Callable[[], int | None] = high_water_bytes, put_back: Callable[[], bool] = put_mark_back
    ) -> None:
        self._mark, self._put_back = mark, put_back
        self._open: list[Peak] = []
        self._lock = Lock()

    def open(self) -> Peak:
        """Begins a window at the present level."""
        with self._lock:
            mark = self._mark()
            for peak in self._open:
                peak.credit(mark)
            if self._put_back():
                mark = 0
                for peak in self._open:
                    peak.floor = 0
            self._open.append(Peak(mark or 0))
            return self._open[-1]

    def read(self, peak: Peak) -> int | None:
        """The peak of that window so far, in bytes."""
        with self._lock:
            peak.credit(self._mark())
            return peak.bytes

    def close(self, peak: Peak) -> None:
        """Ends a window; its peak no longer rises."""
        with self._lock:
            self._open.remove(peak)


# One, as the mark is one: windows of different meters would otherwise lower it under each other.
PROCESS = PeakMemory()
