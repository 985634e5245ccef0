"""The seam between work and its cost."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from onefold.vocabulary.records import Measurement


class Window(Protocol):
    """A window of work that is or was measured."""

    @property
    def measurement(self) -> Measurement:
        """Return the cost of the window: so far while it is open, complete once it is closed."""


class Meter(Protocol):
    """Measure windows of work of this process.

    Time is monotonic. Energy carries its source; a meter without a source of energy says `unavailable`. Peak memory is
    that of this process inside the window. Windows may nest. Reading costs under 10 ms.
    """

    @property
    def source(self) -> str:
        """Return where the joules come from: `rapl`, `nvml`, `rapl+nvml`, `modelled` or `unavailable`."""

    def window(self) -> AbstractContextManager[Window]:
        """Open a window, which is complete at the end of the block, also if the block raises."""
