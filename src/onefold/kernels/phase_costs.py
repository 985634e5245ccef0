"""Time and energy of a compilation by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onefold import meter
from onefold.vocabulary.kernels import CompileCost


class PhaseCosts:
    """Adds up seconds and joules. Workers report their own joules if the meter sees only this process."""

    def __init__(self, earlier: CompileCost | None = None) -> None:
        self._meter = meter.choose()
        self.total = earlier or CompileCost(source=self._meter.source)

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[], CompileCost]]:
        """Attribute the time and energy of the block to a phase, also if it raises; yield its cost so far."""
        started = time.perf_counter()
        with self._meter.window() as window:

            def cost_so_far() -> CompileCost:
                energy = window.measurement.energy
                joules = {} if energy.joules is None else {name: energy.joules}
                return CompileCost({name: time.perf_counter() - started}, joules, energy.source)

            try:
                yield cost_so_far
            finally:
                self.total += cost_so_far()

    def add(self, name: str, joules: float | None) -> None:
        """Add the energy that a worker reports; None if the machine's counters, which `phase` reads, include it."""
        if joules is not None:
            self.total += CompileCost({}, {name: joules}, self.total.source)
