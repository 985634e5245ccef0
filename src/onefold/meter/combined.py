"""Add up the energy of several meters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from onefold.meter.meter import Meter, Window
from onefold.meter.window import UNAVAILABLE
from onefold.vocabulary.records import Energy, Measurement


class CombinedMeter:
    """Sum the joules of several meters, such as `rapl+nvml`; take time, processor time and memory from one of them.

    A sum that lacks a part is `unavailable`, and one with a modelled part is `modelled`.
    """

    def __init__(self, first: Meter, *others: Meter) -> None:
        self._meters = (first, *others)

    @property
    def source(self) -> str:
        """Return the sources of all parts, or the weakest of them."""
        return _joined([meter.source for meter in self._meters])

    @contextmanager
    def window(self) -> Iterator[Window]:
        with ExitStack() as stack:
            yield CombinedWindow([stack.enter_context(meter.window()) for meter in self._meters])


class CombinedWindow:
    """One window of work, measured by several meters."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows

    @property
    def measurement(self) -> Measurement:
        parts = [window.measurement for window in self._windows]
        # The last one was opened last and is closed first: it includes the least measurement overhead.
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
