"""The figures of a device that decide how fast it serves a model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from onefold.vocabulary.records import to_json


@dataclass(frozen=True, slots=True)
class Device:
    """A device that models are served on. Its figures are what software achieves, not data-sheet peaks."""

    name: str
    title: str
    cores: int
    gflops: float  # fp32 GFLOP/s of one core
    bandwidth_gbps: float  # memory bandwidth of all cores together, in GB/s
    memory_bytes: int
    idle_w: float
    busy_w: float  # with all cores busy
    architecture: str = ""
    frequency_ghz: float | None = None
    overhead_us: float = 5.0  # dispatch overhead of one operator on one core
    source: str = "catalog"  # catalog, user, calibrated (here), probe (on the board), agent, fitted (to points)
    note: str = ""  # the origin of the figures
    agent: str = ""  # fingerprint of the certificate of its agent; without one, the device is emulated
    runtime: str = ""  # inference runtime of its agent, with the version

    @property
    def digest(self) -> str:
        """Return a hash of the figures: measurements are valid only for the figures that they were taken with."""
        figures = {key: value for key, value in to_json(self).items() if key not in ("title", "source", "note")}
        for name in ("agent", "runtime"):  # devices without one have the digest that they had in older versions
            if not figures[name]:
                del figures[name]
        return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:16]

    def power_w(self, busy_cores: float) -> float:
        """Return the power in watts with this number of busy cores, interpolated between idle and busy."""
        return self.idle_w + (self.busy_w - self.idle_w) * min(busy_cores, self.cores) / self.cores
