"""The window that all meters share: time, processor time and peak memory, and joules from where a meter has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, process_time

from onefold.meter.memory import PROCESS
from onefold.vocabulary.records import Energy, Measurement

UNAVAILABLE = Energy(None, "unavailable")

# From the processor seconds of the window so far to its energy so far.
EnergySoFar = Callable[[float], Energy]


class ProcessWindow:
    """What this process spends from its making on. Processor time is that of all its threads, not of its children."""

    def __init__(self, start_energy: Callable[[], EnergySoFar]) -> None:
        self._final: Measurement | None = None
        self._peak = PROCESS.open()
        self._energy = start_energy()
        # The clocks come last here and first in reading, so that measuring is not measured.
        self._cpu_s = process_time()
        self._time_s = perf_counter()

    @property
    def measurement(self) -> Measurement:
        """What the window cost: complete once it is closed, so far while it is open."""
        return self._final or self._so_far()

    def close(self) -> None:
        """Completes the measurement."""
        try:
            self._final = self._so_far()
        finally:
            PROCESS.close(self._peak)

    def _so_far(self) -> Measurement:
        time_s = perf_counter() - self._time_s
        cpu_s = process_time() - self._cpu_s
        return Measurement(time_s, cpu_s, self._energy(cpu_s), PROCESS.read(self._peak))


@contextmanager
def process_window(start_energy: Callable[[], EnergySoFar]) -> Iterator[ProcessWindow]:
    """A window over the block; `start_energy` is called at its beginning and returns what tells the energy since."""
    window = ProcessWindow(start_energy)
    try:
        yield window
    finally:
        window.close()
