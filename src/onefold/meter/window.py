"""The window that all meters share: time, processor time and peak memory; each meter adds its energy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time

from onefold.meter.memory import PROCESS_MEMORY
from onefold.processes import running_s
from onefold.vocabulary.records import Energy, Measurement

UNAVAILABLE = Energy(None, "unavailable")

# Processor seconds of the window so far -> its energy so far.
EnergySoFar = Callable[[float], Energy]


class ProcessWindow:
    """The cost of this process since the window was created.

    Processor time includes all threads, but no children. Time in which the parent pauses this process does not count.
    """

    def __init__(self, start_energy: Callable[[], EnergySoFar]) -> None:
        self._final: Measurement | None = None
        self._peak = PROCESS_MEMORY.open()
        self._energy = start_energy()
        # The clocks are read last here and first below, so that the overhead is not measured.
        self._cpu_s = process_time()
        self._time_s = running_s()

    @property
    def measurement(self) -> Measurement:
        return self._final or self._so_far()

    def close(self) -> None:
        """Complete the measurement."""
        try:
            self._final = self._so_far()
        finally:
            PROCESS_MEMORY.close(self._peak)

    def _so_far(self) -> Measurement:
        time_s = running_s() - self._time_s
        cpu_s = process_time() - self._cpu_s
        return Measurement(time_s, cpu_s, self._energy(cpu_s), PROCESS_MEMORY.read(self._peak))


@contextmanager
def process_window(start_energy: Callable[[], EnergySoFar]) -> Iterator[ProcessWindow]:
    """Measure the block. `start_energy` is called at its beginning and returns a function for the energy since then."""
    window = ProcessWindow(start_energy)
    try:
        yield window
    finally:
        window.close()
