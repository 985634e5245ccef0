"""The cost of serving a model at a serving point, and the source of each number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from onefold.vocabulary import quantities
from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.quantities import share
from onefold.vocabulary.ratios import SERVED_SAMPLES
from onefold.vocabulary.records import Energy, Metrics

ONNXRUNTIME = "onnxruntime"


class LatencySource(Enum):
    """How a latency was obtained. Only measurements on the device itself are MEASURED."""

    MEASURED = "measured"
    EMULATED = "emulated"  # measured on this machine, confined like the device, and scaled by a roofline model
    PREDICTED = "predicted"  # computed from other points
    CPU_TIME = "cpu-time"  # CPU time on the device: other programs took too much of it to time batches by the clock

    @property
    def is_from_device(self) -> bool:
        """Return whether it was taken on the device itself, by either clock."""
        return self in (LatencySource.MEASURED, LatencySource.CPU_TIME)


class OptimizeFor(Enum):
    """The goal that a serving point is chosen for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """The knobs of inference."""

    batch_size: int = 1
    threads: int = 1  # intra-op threads
    graph_level: str = "all"  # graph optimization level of ONNX Runtime: none, basic, extended, all
    execution: str = "sequential"  # or parallel: independent branches of the graph run concurrently
    precision: str = "fp32"
    waiting: str = "sleeping"  # or spinning: idle threads of the pool busy-wait, to start sooner
    runtime: str = ONNXRUNTIME  # what serves the model; the graph level, execution and waiting are ONNX Runtime's

    def __str__(self) -> str:
        threads = f"{self.threads} {'spinning ' * (self.waiting == 'spinning')}thread{'s' * (self.threads > 1)}"
        if self.runtime != ONNXRUNTIME:
            return f"{self.runtime}, batch {self.batch_size}, {threads}"
        level = f"graph level {self.graph_level}"
        return f"batch {self.batch_size}, {threads}, {level}, {self.execution}, {self.precision}"


NEGLIGIBLE_CONTENTION = 0.05  # a share that every measurement has
MAX_SPREAD = 0.2  # of the confidence interval of a clean median, to either side


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What disturbed a measurement: the share of CPU time that other programs took, and why the clock was throttled."""

    contention: float = 0.0
    throttling: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeResult:
    """What is known of a model in one runtime."""

    runtime: str
    version: str = ""
    metrics: Metrics = field(default_factory=dict)  # of the outputs of this runtime: those of the workload on its
    # validation data, or the agreement with ONNX Runtime on the samples of the model
    error: float | None = None  # largest difference from the model's outputs, relative to the largest of them
    size_bytes: int | None = None  # of its files
    latency_s: float | None = None  # of one sample, with the fastest number of threads
    threads: int | None = None
    reason: str = ""  # why it is not recommended: it is not installed, cannot have the model, or loses too much


@dataclass(frozen=True, slots=True)
class Served:
    """The cost of one serving point under back-to-back batches. Times are per batch."""

    point: ServingPoint
    latency_s: float  # median
    p90_s: float
    p99_s: float
    low_s: float  # 95 % confidence interval of the median; of a predicted point the 95 % prediction interval
    high_s: float
    runs: int
    energy: Energy  # per batch
    memory_bytes: int | None  # peak memory of the process that serves
    source: LatencySource
    after_rest_s: tuple[float, float, float] | None = None  # median, p90 and p99 of batches that follow an idle gap
    disturbance: Disturbance = Disturbance()

    @property
    def reasons_for_doubt(self) -> tuple[str, ...]:
        """Return why the latency may be wrong; empty for a clean measurement and for a predicted point."""
        if not self.runs:
            return ()
        spread = (self.high_s - self.low_s) / (2 * self.latency_s) if self.latency_s > 0 else 0.0
        contention = self.disturbance.contention
        reasons = {
            f"throttled: {self.disturbance.throttling}": bool(self.disturbance.throttling),
            f"other programs took {share(contention)} of the CPU time": contention > NEGLIGIBLE_CONTENTION,
            f"the median is uncertain by {share(spread)}": spread > MAX_SPREAD,
        }
        return tuple(reason for reason, holds in reasons.items() if holds)

    @property
    def throughput_per_s(self) -> float:
        """Return the samples per second."""
        return self.point.batch_size / self.latency_s

    @property
    def energy_per_sample_j(self) -> float | None:
        """Return the joules per sample; the source is that of `energy`."""
        return None if self.energy.joules is None else self.energy.joules / self.point.batch_size

    def cost(self, optimize_for: OptimizeFor) -> float:
        """Return the value to minimize: seconds per batch, seconds per sample, or joules per sample."""
        if optimize_for is OptimizeFor.LATENCY:
            return self.latency_s
        if optimize_for is OptimizeFor.ENERGY and self.energy_per_sample_j is not None:
            return self.energy_per_sample_j
        return self.latency_s / self.point.batch_size

    @property
    def is_predicted(self) -> bool:
        """Return whether this point never ran: its latency may be anything within the interval."""
        return self.source is LatencySource.PREDICTED

    def highest_cost(self, optimize_for: OptimizeFor) -> float:
        """Return the cost at the upper end of the interval of a predicted point; the cost of other points."""
        cost = self.cost(optimize_for)
        return cost * self.high_s / self.latency_s if self.is_predicted and cost < math.inf else cost

    @property
    def source_text(self) -> str:
        """Return how the latency was obtained, with the interval of a predicted point."""
        if not self.is_predicted:
            return self.source.value
        return f"{self.source.value}, {quantities.duration(self.low_s)} to {quantities.duration(self.high_s)}"


@dataclass(frozen=True, slots=True)
class Surface:
    """All known serving points of one architecture on one device."""

    signature: str  # hash of the graph and its inputs, without the weights
    device: str
    served: tuple[Served, ...]
    size_bytes: int  # of the ONNX file
    parameters: int = 0
    measured_s: float = 0.0  # duration of the measurements, during which trials were paused
    recalled: bool = False  # loaded from an earlier measurement
    notes: tuple[str, ...] = field(default=())
    measured_on: str = ""  # ISO date and time in UTC; empty in stores of earlier versions

    @property
    def reasons_for_doubt(self) -> tuple[str, ...]:
        """Return what disturbed the measurement of the points that its metrics are taken from; empty if it is clean."""
        reasons = [reason for goal in OptimizeFor for reason in self.best(goal).reasons_for_doubt]
        if not self.measured_on:  # points of earlier versions have no disturbance of their own, and notes had it
            reasons += [note for note in self.notes if note.startswith(("contention: ", "throttled: "))]
        return tuple(dict.fromkeys(reasons))

    def best(self, optimize_for: OptimizeFor) -> Served:
        """Return the cheapest point for a goal."""
        return best(self.served, optimize_for)

    def metrics(self, device: str = "") -> Metrics:
        """Return the metrics that objectives name; with `device`, each name ends with `@device`."""
        latency, throughput, energy = (self.best(goal) for goal in OptimizeFor)
        metrics = {
            "latency_s": latency.latency_s,
            "latency_p99_s": latency.p99_s,
            "throughput_per_s": throughput.throughput_per_s,
            "size_bytes": float(self.size_bytes),
        }
        if energy.energy_per_sample_j is not None:
            metrics["energy_per_sample_j"] = energy.energy_per_sample_j
        if latency.memory_bytes is not None:
            metrics["serving_memory_bytes"] = float(latency.memory_bytes)
        return {f"{name}@{device}" if device else name: value for name, value in metrics.items()}


def metrics_on(devices: Sequence[str], trial: int, surfaces: Mapping[tuple[int, str], Surface]) -> Metrics:
    """Return the known serving metrics of a trial; those that do not name a device are of the first one."""
    return on_devices(devices, trial, surfaces, Surface.metrics)


def on_devices(
    devices: Sequence[str],
    trial: int,
    surfaces: Mapping[tuple[int, str], Surface],
    metrics_of: Callable[[Surface, str], Metrics],
) -> dict[str, float]:
    """Return the metrics that `metrics_of` computes of each surface of a trial and the device to name in them."""
    metrics: dict[str, float] = {}
    for index, device in enumerate(devices):
        surface = surfaces.get((trial, device))
        if surface is not None:
            metrics |= metrics_of(surface, "") if index == 0 else {}
            metrics |= metrics_of(surface, device) if len(devices) > 1 else {}
    return metrics


SERVING_METRICS = (
    "latency_s",
    "latency_p99_s",
    "throughput_per_s",
    "energy_per_sample_j",
    "size_bytes",
    "serving_memory_bytes",
)
RATE_METRICS = ("sustained_per_s", "needed_per_s")  # of scenarios whose requests arrive at a rate
LOAD_METRICS = ("response_s", "response_p99_s", *RATE_METRICS)  # simulated, of a scenario


def is_load_metric(metric: str) -> bool:
    """Return whether a metric has the name of one of a scenario, on a device or not: `server_100_response_s`."""
    name = metric.partition("@")[0]
    return any(name == known or name.endswith(f"_{known}") for known in LOAD_METRICS)


def is_serving_metric(metric: str) -> bool:
    """Return whether a metric is a serving cost, on a device or not, or is computed from one.

    Any name will do: a workload may report "top-1 (%)", which is no expression.
    """
    try:
        inputs = Objective(minimize=metric).inputs
    except ObjectiveError:
        return False
    return any(name.partition("@")[0] in (*SERVING_METRICS, SERVED_SAMPLES) or is_load_metric(name) for name in inputs)


def without_serving(metrics: Mapping[str, float]) -> Metrics:
    """Return the metrics of training, which measuring a model again does not change."""
    return {name: value for name, value in metrics.items() if not is_serving_metric(name)}


def best(served: Iterable[Served], optimize_for: OptimizeFor) -> Served:
    """Return the cheapest point; LATENCY prefers points of batch size 1 and ENERGY points whose energy is known.

    A predicted point is the best only if it is cheaper than every other one even at the upper end of its interval.
    """
    points: Sequence[Served] = tuple(served)
    if optimize_for is OptimizeFor.LATENCY:
        points = [point for point in points if point.point.batch_size == 1] or points
    if optimize_for is OptimizeFor.ENERGY:
        points = [point for point in points if point.energy.joules is not None] or points
    return min(without_doubtful(points, optimize_for), key=lambda point: point.cost(optimize_for))


def without_doubtful(served: Iterable[Served], optimize_for: OptimizeFor) -> list[Served]:
    """Return the points without those predicted ones whose interval has the cost of a point that ran.

    If no point ran, all are returned.
    """
    points = list(served)
    limit = min((point.cost(optimize_for) for point in points if not point.is_predicted), default=math.inf)
    return [point for point in points if not point.is_predicted or point.highest_cost(optimize_for) < limit] or points
