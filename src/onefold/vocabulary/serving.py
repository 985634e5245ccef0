"""What serving a model costs: at which point, how long, how much, and how each number was obtained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from onefold.vocabulary.records import Energy, Metrics


class LatencySource(Enum):
    """How a latency was obtained. Nothing that was not measured on the device itself says MEASURED."""

    MEASURED = "measured"
    EMULATED = "emulated"  # measured on this machine, confined as the device is, and carried over
    PREDICTED = "predicted"  # worked out from other points


class OptimizeFor(Enum):
    """What a serving point is best for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """The knobs of inference."""

    batch_size: int = 1
    threads: int = 1
    graph_level: str = "all"  # how far ONNX Runtime rewrites the graph: none, basic, extended, all
    execution: str = "sequential"  # or parallel: branches of the graph side by side
    precision: str = "fp32"
    waiting: str = "sleeping"  # or spinning: threads without work keep their cores busy, to be there sooner

    def __str__(self) -> str:
        threads = f"{self.threads} {'spinning ' * (self.waiting == 'spinning')}thread{'s' * (self.threads > 1)}"
        level = f"graph level {self.graph_level}"
        return f"batch {self.batch_size}, {threads}, {level}, {self.execution}, {self.precision}"


@dataclass(frozen=True, slots=True)
class Served:
    """What one serving point costs, one batch after the other: times are of a whole batch."""

    point: ServingPoint
    latency_s: float  # the median
    p90_s: float
    p99_s: float
    low_s: float  # the 95 % confidence interval of the median
    high_s: float
    runs: int
    energy: Energy  # of one batch
    memory_bytes: int | None  # of the process that serves, at its peak
    source: LatencySource
    after_rest_s: tuple[float, float, float] | None = None  # median, p90 and p99 of batches that come after a rest

    @property
    def throughput_per_s(self) -> float:
        """Samples per second."""
        return self.point.batch_size / self.latency_s

    @property
    def energy_per_sample_j(self) -> float | None:
        """Joules per sample, with the source that `energy` has."""
        return None if self.energy.joules is None else self.energy.joules / self.point.batch_size

    def cost(self, purpose: OptimizeFor) -> float:
        """What to minimise for a purpose: seconds a batch, seconds a sample, joules a sample."""
        if purpose is OptimizeFor.LATENCY:
            return self.latency_s
        if purpose is OptimizeFor.ENERGY and self.energy_per_sample_j is not None:
            return self.energy_per_sample_j
        return self.latency_s / self.point.batch_size


@dataclass(frozen=True, slots=True)
class Surface:
    """All that is known about serving one architecture on one device."""

    signature: str  # of the graph, weights left out, and its input
    device: str
    served: tuple[Served, ...]
    size_bytes: int  # of the ONNX file
    parameters: int = 0
    measured_s: float = 0.0  # what finding it out took while trials were paused
    recalled: bool = False  # known from before: nothing was measured for it now
    notes: tuple[str, ...] = field(default=())

    def best(self, purpose: OptimizeFor) -> Served:
        """The cheapest point for a purpose."""
        return best(self.served, purpose)

    def metrics(self, device: str = "") -> Metrics:
        """Its figures by the names that objectives use; with `device`, by the names that say which device."""
        latency, throughput, energy = (self.best(purpose) for purpose in OptimizeFor)
        found = {
            "latency_s": latency.latency_s,
            "latency_p99_s": latency.p99_s,
            "throughput_per_s": throughput.throughput_per_s,
            "size_bytes": float(self.size_bytes),
        }
        if energy.energy_per_sample_j is not None:
            found["energy_per_sample_j"] = energy.energy_per_sample_j
        if latency.memory_bytes is not None:
            found["serving_memory_bytes"] = float(latency.memory_bytes)
        return {f"{name}@{device}" if device else name: value for name, value in found.items()}


SERVING_METRICS = (
    "latency_s",
    "latency_p99_s",
    "throughput_per_s",
    "energy_per_sample_j",
    "size_bytes",
    "serving_memory_bytes",
)


def best(served: Iterable[Served], purpose: OptimizeFor) -> Served:
    """The cheapest for a purpose. LATENCY looks at single samples and ENERGY at known joules, where there are any."""
    points: Sequence[Served] = tuple(served)
    if purpose is OptimizeFor.LATENCY:
        points = [one for one in points if one.point.batch_size == 1] or points
    if purpose is OptimizeFor.ENERGY:
        points = [one for one in points if one.energy.joules is not None] or points
    return min(points, key=lambda one: one.cost(purpose))
