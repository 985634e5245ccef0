"""What a compilation costs, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from onefold import meter
from onefold.vocabulary.kernels import CompileCost


class PhaseCosts:
    """Adds up seconds and joules. Workers tell their own joules where a model of this process would not see them."""

    def __init__(self, earlier: CompileCost | None = None) -> None:
        self._meter = meter.choose()
        self.spent = earlier or CompileCost(source=self._meter.source)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is spent on this."""
        started = time.perf_counter()
        with self._meter.window() as window:
            yield
        energy = window.measurement.energy
        joules = {} if energy.joules is None else {name: energy.joules}
        self.spent += CompileCost({name: time.perf_counter() - started}, joules, energy.source)

    def add(self, name: str, joules: float | None) -> None:
        """What a worker spent besides; None where the machine's counters, which are read here, hold it already."""
        if joules is not None:
            self.spent += CompileCost({}, {name: joules}, self.spent.source)
