"""What a device is: figures that decide how fast it serves."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from onefold.vocabulary.records import to_json


@dataclass(frozen=True, slots=True)
class Device:
    """A place to serve from. Figures are of what software reaches, not of what a data sheet promises."""

    name: str
    title: str
    cores: int
    gflops: float  # fp32 operations per second of one core, in thousand millions
    bandwidth_gbps: float  # memory, in thousand million bytes per second, all cores together
    memory_bytes: int
    idle_w: float
    busy_w: float  # with all cores busy
    architecture: str = ""
    frequency_ghz: float | None = None
    overhead_us: float = 5.0  # of starting one operator on one core
    source: str = "catalogue"  # catalogue, user, calibrated (here), probe (there), fitted (to points of it)
    note: str = ""  # where the figures come from

    @property
    def digest(self) -> str:
        """A short name of its figures: what was measured for other figures is not for these."""
        figures = {key: value for key, value in to_json(self).items() if key not in ("title", "source", "note")}
        return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:16]

    def power_w(self, busy_cores: float) -> float:
        """Watts while so many cores are busy."""
        return self.idle_w + (self.busy_w - self.idle_w) * min(busy_cores, self.cores) / self.cores
