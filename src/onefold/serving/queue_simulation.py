"""Discrete-event simulation of a server with a batching queue: response times under a given arrival process.

Service times are drawn from a `LatencyCurve` of measured latencies and never extrapolated beyond its largest batch. A
batch that finds the server idle takes longer, by the measured idle penalty. The simulation leaves out the cost of
receiving samples and the correlation between slow batches: service times are independent.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.serving import LatencySource, Served

Seconds = NDArray[np.float64]

_DRAWS = 1000  # quantiles of a service time to draw from; rarer events than 1 in 2,000 are not simulated
_Z = np.array([NormalDist().inv_cdf((rank + 0.5) / _DRAWS) for rank in range(_DRAWS)])
_Z90, _Z99 = NormalDist().inv_cdf(0.90), NormalDist().inv_cdf(0.99)
_TRUST = (  # in increasing order
    LatencySource.PREDICTED, LatencySource.EMULATED, LatencySource.CPU_TIME, LatencySource.MEASURED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Response:
    """Response times of queries, from arrival until the last sample is answered."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    throughput_per_s: float  # samples
    utilization: float  # share of time that the server was busy
    stable: bool  # whether the server keeps up; otherwise response times grow without bound
    queries: int


@dataclass(frozen=True, slots=True, order=True)
class IdlePenalty:
    """The extra latency of a batch that finds the server idle, at one batch size: median, p90 and p99."""

    batch_size: int
    median_s: float
    p90_s: float
    p99_s: float

    @classmethod
    def of(cls, served: Iterable[Served]) -> list[IdlePenalty]:
        """Return the penalties of the points that were also measured after idle gaps; per batch size the smallest."""
        penalties: dict[int, IdlePenalty] = {}
        for point in served:
            if point.after_rest_s is not None:
                pairs = zip(point.after_rest_s, (point.latency_s, point.p90_s, point.p99_s))
                penalty = cls(point.point.batch_size, *(max(0.0, idle - busy) for idle, busy in pairs))
                penalties[penalty.batch_size] = min(penalty, penalties.get(penalty.batch_size, penalty))
        return list(penalties.values())


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """The latency of a batch over batch size, interpolated linearly between the measured batch sizes.

    Batches below the smallest measured size cost as much as that size. Batches beyond the largest raise InputError.
    """

    batch_sizes: tuple[int, ...]
    latency_s: tuple[float, ...]  # medians
    p90_s: tuple[float, ...]
    p99_s: tuple[float, ...]
    idle_penalties: tuple[IdlePenalty, ...] = ()  # by increasing batch size

    def __post_init__(self) -> None:
        rows = (self.latency_s, self.p90_s, self.p99_s)
        if not self.batch_sizes or any(len(row) != len(self.batch_sizes) for row in rows):
            raise InputError("a latency curve needs a median, a p90 and a p99 for each batch size")
        if self.batch_sizes[0] < 1 or any(b <= a for a, b in zip(self.batch_sizes, self.batch_sizes[1:])):
            raise InputError(f"batch sizes of a latency curve must increase from 1 or more, got {self.batch_sizes}")
        if not all(0 < value < math.inf for row in rows for value in row):
            raise InputError("latencies must be positive and finite; measure the other points again")

    @classmethod
    def of(cls, served: Iterable[Served], idle_penalties: Iterable[IdlePenalty] = ()) -> LatencyCurve:
        """Return the curve through these points; per batch size the most trusted source, then the most runs."""
        by_size: dict[int, Served] = {}
        for point in sorted(served, key=lambda point: (_TRUST.index(point.source), point.runs)):
            by_size[point.point.batch_size] = point
        rows = [by_size[size] for size in sorted(by_size)]
        return cls(
            tuple(sorted(by_size)),
            tuple(row.latency_s for row in rows),
            tuple(row.p90_s for row in rows),
            tuple(row.p99_s for row in rows),
            tuple(sorted(idle_penalties)),
        )

    @property
    def largest(self) -> int:
        """Return the largest measured batch size."""
        return self.batch_sizes[-1]

    def time_s(self, batch_size: int) -> float:
        """Return the median latency of a batch."""
        return float(np.interp(self._within(batch_size), self.batch_sizes, self.latency_s))

    def mean_s(self, batch_size: int) -> float:
        """Return the mean latency of a batch."""
        return float(_service_times(self, batch_size).mean())

    def capacity_per_s(self, batch_size: int) -> float:
        """Return the samples per second of back-to-back full batches."""
        return batch_size / self.mean_s(batch_size)

    def spread(self, batch_size: int) -> tuple[float, float]:
        """Return p90 and p99 as multiples of the median, 1 or more."""
        size = self._within(batch_size)
        ratios = [
            float(np.interp(size, self.batch_sizes, np.divide(row, self.latency_s))) for row in (self.p90_s, self.p99_s)
        ]
        p90 = max(1.0, ratios[0])
        return p90, max(p90, ratios[1])

    def _within(self, batch_size: int) -> int:
        if not 1 <= batch_size <= self.largest:
            raise InputError(
                f"batch_size must be within the measured 1 to {self.largest}, got {batch_size}; measure larger batches"
            )
        return batch_size


@lru_cache(maxsize=1024)
def _service_times(curve: LatencyCurve, batch_size: int) -> Seconds:
    """Return equally likely service times of a batch with its median, p90 and p99.

    The distribution is piecewise lognormal through the three quantiles, extrapolated above p99 with the slope from p90
    to p99. Below the median it mirrors the upper half down to p10, since work has a floor.
    """
    log_p90, log_p99 = (math.log(ratio) for ratio in curve.spread(batch_size))
    slope = (log_p99 - log_p90) / (_Z99 - _Z90)
    log_max = log_p99 + slope * (_Z[-1] - _Z99)
    logarithms = np.interp(_Z, (-_Z90, 0.0, _Z90, _Z99, _Z[-1]), (-log_p90, 0.0, log_p90, log_p99, log_max))
    return np.asarray(curve.time_s(batch_size) * np.exp(logarithms))


@lru_cache(maxsize=1024)
def _idle_service_times(curve: LatencyCurve, batch_size: int) -> Seconds:
    """Return the service times of a batch that finds the server idle: each quantile plus its idle penalty."""
    times = _service_times(curve, batch_size)
    if not curve.idle_penalties:
        return times
    sizes = [penalty.batch_size for penalty in curve.idle_penalties]
    rows = ([getattr(penalty, name) for penalty in curve.idle_penalties] for name in ("median_s", "p90_s", "p99_s"))
    penalties = np.interp(_Z, (0.0, _Z90, _Z99), [np.interp(batch_size, sizes, row) for row in rows])
    return np.asarray(times + penalties)


def split(samples: int, batch_size: int) -> tuple[int, ...]:
    """Return the batch sizes that a query is split into: full batches and the remainder."""
    full, remainder = divmod(samples, batch_size)
    return (batch_size,) * full + ((remainder,) if remainder else ())


def query_service_s(curve: LatencyCurve, samples_per_query: int, batch_size: int) -> float:
    """Return the mean service time of a query that is split into batches."""
    return sum(curve.mean_s(size) for size in split(samples_per_query, batch_size))


def simulate_multi_stream(
    curve: LatencyCurve, samples_per_query: int, period_s: float, batch_size: int, queries: int, seed: int
) -> Response:
    """Simulate queries of several samples at a fixed rate, one every `period_s`.

    Each query is split into batches of `batch_size` and a remainder; batches of different queries do not mix. The
    response time of a query ends with its last sample.
    """
    _check(samples_per_query=samples_per_query, period_s=period_s, batch_size=batch_size, queries=queries)
    rng = np.random.default_rng(seed)
    first, *others = split(samples_per_query, min(batch_size, samples_per_query))
    ranks = rng.integers(_DRAWS, size=queries)
    work = _service_times(curve, first)[ranks]
    penalties: list[float] = (_idle_service_times(curve, first)[ranks] - work).tolist()
    for size in others:
        work += _service_times(curve, size)[rng.integers(_DRAWS, size=queries)]
    responses = []
    queued_s = busy_s = 0.0
    for work_s, penalty_s in zip(work.tolist(), penalties):
        service_s = work_s if queued_s else work_s + penalty_s
        busy_s += service_s
        responses.append(queued_s + service_s)
        queued_s = max(0.0, queued_s + service_s - period_s)  # queueing time of the next query
    ended_s = (queries - 1) * period_s + responses[-1]
    stable = query_service_s(curve, samples_per_query, min(batch_size, samples_per_query)) < period_s
    return summary(np.array(responses), queries * samples_per_query, ended_s, busy_s, stable=stable)


def simulate_server(
    curve: LatencyCurve, rate_per_s: float, batch_size: int, wait_s: float, queries: int, seed: int
) -> Response:
    """Simulate single samples with Poisson arrivals and dynamic batching.

    A batch starts when the server is free and either `batch_size` samples are queued or the oldest has waited `wait_s`;
    it takes all queued samples up to `batch_size`.
    """
    _check(rate_per_s=rate_per_s, batch_size=batch_size, queries=queries)
    if not 0 <= wait_s < math.inf:
        raise InputError(f"wait_s must be 0 or more and finite, got {wait_s}")
    rng = np.random.default_rng(seed)
    arrivals: list[float] = np.cumsum(rng.exponential(1 / rate_per_s, queries)).tolist()
    ranks: list[int] = rng.integers(_DRAWS, size=queries).tolist()
    busy_times, idle_times = (
        [[], *(distribution(curve, size).tolist() for size in range(1, batch_size + 1))]
        for distribution in (_service_times, _idle_service_times)
    )
    responses: list[float] = []
    free_s = busy_s = 0.0
    first = 0
    while first < queries:
        start_s = arrivals[first] + wait_s
        if first + batch_size <= queries:
            start_s = min(start_s, arrivals[first + batch_size - 1])
        start_s = max(start_s, free_s)
        end = bisect_right(arrivals, start_s, first, min(first + batch_size, queries))
        service_s = (idle_times if start_s > free_s else busy_times)[end - first][ranks[first]]
        free_s = start_s + service_s
        busy_s += service_s
        responses += [free_s - arrival_s for arrival_s in arrivals[first:end]]
        first = end
    stable = rate_per_s < curve.capacity_per_s(batch_size)
    return summary(np.array(responses), queries, free_s - arrivals[0], busy_s, stable=stable)


def summary(responses: Seconds, samples: int, span_s: float, busy_s: float, *, stable: bool) -> Response:
    """Summarize response times; percentiles are nearest-rank, as in MLPerf LoadGen."""
    ordered = np.sort(responses)
    p50, p90, p99 = (float(ordered[int(len(ordered) * share)]) for share in (0.50, 0.90, 0.99))
    return Response(
        mean_s=float(ordered.mean()),
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        throughput_per_s=samples / span_s,
        utilization=min(1.0, busy_s / span_s),
        stable=stable,
        queries=len(ordered),
    )


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be above 0 and finite, got {value}")
