"""Peak memory of this process inside a window.

The system keeps one high-water mark per process. Linux can reset it to the present level, after which it shows the peak
since then. Each new window does so, after the mark has been credited to the windows that are open already.

Elsewhere the mark only rises: if it rises inside a window it is that window's peak; else the peak is unknown (None).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from onefold.agent.memory import high_water_bytes, reset_high_water


class Peak:
    """The peak of one window."""

    def __init__(self, floor: int) -> None:
        self.floor = floor  # a mark at or below it may be older than the window
        self.bytes: int | None = None

    def credit(self, mark: int | None) -> None:
        """Raise the peak to the mark, if the mark can be of this window."""
        if mark is not None and mark > self.floor:
            self.bytes = max(self.bytes or 0, mark)


class PeakMemory:
    """All open windows over one mark. They may nest, overlap and belong to several threads."""

    def __init__(
        self, mark: Callable[[], int | None] = high_water_bytes, reset: Callable[[], bool] = reset_high_water
    ) -> None:
        self._mark, self._reset = mark, reset
        self._open: list[Peak] = []
        self._lock = Lock()

    def open(self) -> Peak:
        """Open a window at the present level."""
        with self._lock:
            mark = self._mark()
            for peak in self._open:
                peak.credit(mark)
            if self._reset():
                mark = 0
                for peak in self._open:
                    peak.floor = 0
            self._open.append(Peak(mark or 0))
            return self._open[-1]

    def read(self, peak: Peak) -> int | None:
        """Return the peak of a window so far, in bytes."""
        with self._lock:
            peak.credit(self._mark())
            return peak.bytes

    def close(self, peak: Peak) -> None:
        """Close a window; its peak no longer rises."""
        with self._lock:
            self._open.remove(peak)


# One per process, like the mark: otherwise the windows of different meters would reset it under each other.
PROCESS_MEMORY = PeakMemory()
