"""Estimate energy by a model, on machines without a counter."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager

from onefold.meter.meter import Window
from onefold.meter.window import process_window
from onefold.vocabulary.records import Energy

# Watts of one busy core with its share of the package, by `platform.machine()`: rated power over cores, rounded (EPYC
# 7763 280 W / 64, Xeon 8380 270 W / 40, Core i7-1165G7 28 W / 4; a Raspberry Pi 4 draws about 6 W with four busy
# cores). Good for comparing trials on one machine, not for absolute figures.
WATTS_PER_BUSY_CORE = {
    "x86_64": 6.0,
    "AMD64": 6.0,
    "arm64": 4.0,  # Apple silicon
    "aarch64": 1.5,
    "armv7l": 1.0,
}
DEFAULT_WATTS = 5.0


class ModelledMeter:
    """Joules = processor seconds of this process × watts of a busy core; always labeled `modelled`.

    The model covers only the processor: memory, disk, accelerators and idle power are not included, so it must not be
    used where a GPU does the work.
    """

    source = "modelled"

    def __init__(self, watts_per_busy_core: float | None = None) -> None:
        if watts_per_busy_core is None:
            watts_per_busy_core = WATTS_PER_BUSY_CORE.get(platform.machine(), DEFAULT_WATTS)
        self.watts_per_busy_core = watts_per_busy_core

    def window(self) -> AbstractContextManager[Window]:
        return process_window(lambda: self._energy)

    def _energy(self, cpu_s: float) -> Energy:
        return Energy(cpu_s * self.watts_per_busy_core, self.source)
