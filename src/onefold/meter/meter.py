"""The seam between work and its cost."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from onefold.vocabulary.records import Measurement


class Window(Protocol):
    """A stretch of work being measured."""

    @property
    def measurement(self) -> Measurement:
        """What the window cost: complete once it is closed, so far while it is open."""


class Meter(Protocol):
    """Measures windows of work of this process.

    Time is monotonic. Energy carries its source; a meter that cannot tell says `unavailable`, it never makes a number
    up. Peak memory is that of this process inside the window. Windows may nest. Reading costs under 10 ms.
    """

    @property
    def source(self) -> str:
        """Where its joules come from: `rapl`, `nvml`, `rapl+nvml`, `modelled` or `unavailable`."""

    def window(self) -> AbstractContextManager[Window]:
        """Opens a window; it is closed, and complete, at the end of the block, also when that raises."""
