"""Energy from a model, for machines without a counter."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager

from onefold.meter.meter import Window
from onefold.meter.window import process_window
from onefold.vocabulary.records import Energy

# Watts of one busy core with its share of the package, by `platform.machine()`. They come from data sheets (rated power
# over cores: EPYC 7763 280 W / 64, Xeon 8380 270 W / 40, Core i7-1165G7 28 W / 4; boards of the Raspberry Pi 4 kind
# draw about 6 W with four busy cores), rounded: good for comparing trials on one machine, not for a bill.
WATTS_PER_BUSY_CORE = {
    "x86_64": 6.0,
    "AMD64": 6.0,
    "arm64": 4.0,  # what Apple calls its machines
    "aarch64": 1.5,
    "armv7l": 1.0,
}
WATTS_OF_OTHERS = 5.0


class ModelledMeter:
    """Joules = processor seconds of this process × watts of a busy core; always labelled `modelled`.

    The model knows the processor only. Memory, disk, accelerator and the power of an idle machine are not in it, so it
    must not stand for the whole where a GPU does the work.
    """

    source = "modelled"

    def __init__(self, watts_per_busy_core: float | None = None) -> None:
        if watts_per_busy_core is None:
            watts_per_busy_core = WATTS_PER_BUSY_CORE.get(platform.machine(), WATTS_OF_OTHERS)
        self.watts_per_busy_core = watts_per_busy_core

    def window(self) -> AbstractContextManager[Window]:
        """Opens a window."""
        return process_window(lambda: self._energy)

    def _energy(self, cpu_s: float) -> Energy:
        return Energy(cpu_s * self.watts_per_busy_core, self.source)
