"""Several meters at once, for joules that are counted in several places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from onefold.meter.meter import Meter, Window
from onefold.meter.window import UNAVAILABLE
from onefold.vocabulary.records import Energy, Measurement


class CombinedMeter:
    """The joules of all its meters together, such as `rapl+nvml`; time, processor time and memory of one of them.

    A sum that lacks a part is `unavailable`, and one with a modelled part is `modelled`.
    """

    def __init__(self, first: Meter, *others: Meter) -> None:
        self._meters = (first, *others)

    @property
    def source(self) -> str:
        """The sources of all parts, or the weakest of them."""
        return _joined([meter.source for meter in self._meters])

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Opens a window."""
        with ExitStack() as stack:
            yield CombinedWindow([stack.enter_context(meter.window()) for meter in self._meters])


class CombinedWindow:
    """The same stretch of work as several meters see it."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows

    @property
    def measurement(self) -> Measurement:
        """What the window cost: complete once it is closed, so far while it is open."""
        parts = [window.measurement for window in self._windows]
        # The last one was opened last and is closed first: it holds the least of the measuring itself.
        return replace(parts[-1], energy=_sum([part.energy for part in parts]))


def _sum(energies: Sequence[Energy]) -> Energy:
    joules = [energy.joules for energy in energies if energy.joules is not None]
    if len(joules) < len(energies):
        return UNAVAILABLE
    return Energy(sum(joules), _joined([energy.source for energy in energies]))


def _joined(sources: Sequence[str]) -> str:
    for weakest in ("unavailable", "modelled"):
        if weakest in sources:
            return weakest
    return "+".join(dict.fromkeys(sources))
