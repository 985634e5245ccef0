"""The figures of a device that decide how fast it serves a model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace

from onefold.device.operator_groups import STREAM
from onefold.vocabulary.records import OMIT_IF_EMPTY, to_json

MAX_SPREAD = 0.10  # of the passes of a good calibration
_DESCRIPTIVE = ("title", "source", "note", "spread")  # fields that no measurement depends on


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
    int8_gops: float | None = field(default=None, metadata=OMIT_IF_EMPTY)  # int8 operations of one core, in 10^9 per s
    call_us: float = field(default=0.0, metadata=OMIT_IF_EMPTY)  # of a call of the runtime, beside its operators
    # By group of operators: GFLOP/s, or GB/s if they are bound by memory; of one core.
    operator_rates: tuple[tuple[str, float], ...] = field(default=(), metadata=OMIT_IF_EMPTY)
    thread_speed: tuple[tuple[int, float], ...] = field(default=(), metadata=OMIT_IF_EMPTY)  # relative to one thread
    spread: float | None = field(default=None, metadata=OMIT_IF_EMPTY)  # of the figures over repeated calibrations

    @property
    def digest(self) -> str:
        """Return a hash of the figures: measurements are valid only for the figures that they were taken with."""
        figures = {key: value for key, value in to_json(self).items() if key not in _DESCRIPTIVE}
        for name in ("agent", "runtime"):  # devices without one have the digest that they had in older versions
            if not figures[name]:
                del figures[name]
        return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:16]

    def power_w(self, busy_cores: float) -> float:
        """Return the power in watts with this number of busy cores, interpolated between idle and busy."""
        return self.idle_w + (self.busy_w - self.idle_w) * min(busy_cores, self.cores) / self.cores

    def slower(self, factor: float) -> Device:
        """Return a device that takes this many times as long for everything."""
        return replace(
            self,
            gflops=self.gflops / factor,
            int8_gops=None if self.int8_gops is None else self.int8_gops / factor,
            bandwidth_gbps=self.bandwidth_gbps / factor,
            overhead_us=self.overhead_us * factor,
            call_us=self.call_us * factor,
            operator_rates=tuple((name, rate / factor) for name, rate in self.operator_rates),
        )

    def at_frequency(self, frequency_ghz: float) -> Device:
        """Return the device with its cores clocked at this frequency.

        Compute, caches and dispatch follow the clock, memory does not. The power of busy cores is assumed to grow with
        the square of the frequency, since the voltage falls with it. The figures of a device whose frequency is unknown
        stay as they are.
        """
        if self.frequency_ghz is None:
            return replace(self, frequency_ghz=frequency_ghz)
        ratio = frequency_ghz / self.frequency_ghz
        scaled = self.slower(1 / ratio)
        return replace(
            scaled,
            frequency_ghz=frequency_ghz,
            bandwidth_gbps=self.bandwidth_gbps,
            operator_rates=tuple(
                (name, rate / ratio if name == STREAM else rate) for name, rate in scaled.operator_rates
            ),
            busy_w=self.idle_w + (self.busy_w - self.idle_w) * ratio**2,
        )
