"""One server that answers in batches, simulated: how long answers take when samples come in as they like.

Service times come from a `LatencyCurve`, which holds what was measured. Nothing beyond its largest batch is assumed.
A batch that finds the server idle takes longer than one that follows another, by what was measured of batches after a
rest. Two things are left out, which a real run has: the work of taking samples in, and slow moments that come in a row
(here each batch is slow or fast by itself).
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

_DRAWS = 1000  # quantiles of a service time to draw from: nothing rarer than 1 in 2,000 is made up
_Z = np.array([NormalDist().inv_cdf((place + 0.5) / _DRAWS) for place in range(_DRAWS)])
_Z90, _Z99 = NormalDist().inv_cdf(0.90), NormalDist().inv_cdf(0.99)
_TRUST = (LatencySource.PREDICTED, LatencySource.EMULATED, LatencySource.MEASURED)  # the later ones win


@dataclass(frozen=True, slots=True)
class Response:
    """How long queries took from their arrival to their last sample's answer."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    throughput_per_s: float  # samples
    utilisation: float  # the share of the time in which the server was busy
    stable: bool  # whether the server keeps up: otherwise the times grow for as long as one looks
    queries: int


@dataclass(frozen=True, slots=True, order=True)
class IdlePenalty:
    """How much longer a batch of this size takes when the server was idle before it: median, p90 and p99."""

    batch_size: int
    median_s: float
    p90_s: float
    p99_s: float

    @classmethod
    def of(cls, served: Iterable[Served]) -> list[IdlePenalty]:
        """What the points tell that were measured with rests too; of two with one batch size the lesser."""
        found: dict[int, IdlePenalty] = {}
        for one in served:
            if one.after_rest_s is not None:
                pairs = zip(one.after_rest_s, (one.latency_s, one.p90_s, one.p99_s))
                rest = cls(one.point.batch_size, *(max(0.0, after - before) for after, before in pairs))
                found[rest.batch_size] = min(rest, found.get(rest.batch_size, rest))
        return list(found.values())


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """Seconds per batch at the batch sizes that were measured, smallest first; straight lines between them.

    A straight line never leaves the range of its two ends. Batches below the smallest are taken to cost as much as
    that; beyond the largest is an InputError.
    """

    batch_sizes: tuple[int, ...]
    latency_s: tuple[float, ...]  # medians
    p90_s: tuple[float, ...]
    p99_s: tuple[float, ...]
    rests: tuple[IdlePenalty, ...] = ()  # what a rest adds, by batch size, smallest first

    def __post_init__(self) -> None:
        rows = (self.latency_s, self.p90_s, self.p99_s)
        if not self.batch_sizes or any(len(row) != len(self.batch_sizes) for row in rows):
            raise InputError("a latency curve needs a median, a p90 and a p99 for each of its batch sizes")
        if self.batch_sizes[0] < 1 or any(b <= a for a, b in zip(self.batch_sizes, self.batch_sizes[1:])):
            raise InputError(f"batch sizes of a latency curve grow from 1 or more; got {self.batch_sizes}")
        if not all(0 < value < math.inf for row in rows for value in row):
            raise InputError("latencies are positive and finite; measure the points again that are not")

    @classmethod
    def of(cls, served: Iterable[Served], rests: Iterable[IdlePenalty] = ()) -> LatencyCurve:
        """The curve through these points; of two with one batch size the measured one, then the one of more runs."""
        kept: dict[int, Served] = {}
        for one in sorted(served, key=lambda one: (_TRUST.index(one.source), one.runs)):
            kept[one.point.batch_size] = one
        rows = [kept[size] for size in sorted(kept)]
        return cls(
            tuple(sorted(kept)),
            tuple(one.latency_s for one in rows),
            tuple(one.p90_s for one in rows),
            tuple(one.p99_s for one in rows),
            tuple(sorted(rests)),
        )

    @property
    def largest(self) -> int:
        """The largest batch that was measured."""
        return self.batch_sizes[-1]

    def time_s(self, batch_size: int) -> float:
        """The median seconds of a batch."""
        return float(np.interp(self._within(batch_size), self.batch_sizes, self.latency_s))

    def mean_s(self, batch_size: int) -> float:
        """The mean seconds of a batch, above the median when some runs are slow."""
        return float(_service_times(self, batch_size).mean())

    def capacity_per_s(self, batch_size: int) -> float:
        """Samples per second in full batches, one after the other."""
        return batch_size / self.mean_s(batch_size)

    def spread(self, batch_size: int) -> tuple[float, float]:
        """p90 and p99 as multiples of the median, 1 or more."""
        size = self._within(batch_size)
        slower = [
            float(np.interp(size, self.batch_sizes, np.divide(row, self.latency_s))) for row in (self.p90_s, self.p99_s)
        ]
        p90 = max(1.0, slower[0])
        return p90, max(p90, slower[1])

    def _within(self, batch_size: int) -> int:
        if not 1 <= batch_size <= self.largest:
            raise InputError(
                f"batches of 1 to {self.largest} were measured, {batch_size} was asked for; measure it or stay within"
            )
        return batch_size


@lru_cache(maxsize=1024)
def _service_times(curve: LatencyCurve, batch_size: int) -> Seconds:
    """Equally likely seconds of a batch, which have its median, p90 and p99.

    In the logarithm of the time and the quantiles of a normal distribution this is lognormal between the three; above
    p99 it goes on as from p90 to p99. Below the median it mirrors the other side down to p10: work has a floor.
    """
    slow90, slow99 = (math.log(times) for times in curve.spread(batch_size))
    steepness = (slow99 - slow90) / (_Z99 - _Z90)
    slowest = slow99 + steepness * (_Z[-1] - _Z99)
    logarithms = np.interp(_Z, (-_Z90, 0.0, _Z90, _Z99, _Z[-1]), (-slow90, 0.0, slow90, slow99, slowest))
    return np.asarray(curve.time_s(batch_size) * np.exp(logarithms))


@lru_cache(maxsize=1024)
def _rested_times(curve: LatencyCurve, batch_size: int) -> Seconds:
    """The same after a rest: slow moments add what they added when that was measured."""
    times = _service_times(curve, batch_size)
    if not curve.rests:
        return times
    sizes = [rest.batch_size for rest in curve.rests]
    rows = ([getattr(rest, name) for rest in curve.rests] for name in ("median_s", "p90_s", "p99_s"))
    added = np.interp(_Z, (0.0, _Z90, _Z99), [np.interp(batch_size, sizes, row) for row in rows])
    return np.asarray(times + added)


def split(samples: int, batch_size: int) -> tuple[int, ...]:
    """Full batches, and one with the rest."""
    whole, rest = divmod(samples, batch_size)
    return (batch_size,) * whole + ((rest,) if rest else ())


def query_s(curve: LatencyCurve, samples_per_query: int, batch_size: int) -> float:
    """Mean seconds of work that a query of so many samples makes."""
    return sum(curve.mean_s(size) for size in split(samples_per_query, batch_size))


def simulate_server(
    curve: LatencyCurve, samples_per_query: int, period_s: float, batch_size: int, queries: int, seed: int
) -> Response:
    """Queries of N samples, one every `period_s`, each split into batches of `batch_size` and a rest.

    Batches of different queries do not mix. A response ends with the last sample of its query.
    """
    _check(samples_per_query=samples_per_query, period_s=period_s, batch_size=batch_size, queries=queries)
    draws = np.random.default_rng(seed)
    first, *others = split(samples_per_query, min(batch_size, samples_per_query))
    lots = draws.integers(_DRAWS, size=queries)
    work = _service_times(curve, first)[lots]
    longer: list[float] = (_rested_times(curve, first)[lots] - work).tolist()
    for size in others:
        work += _service_times(curve, size)[draws.integers(_DRAWS, size=queries)]
    responses = []
    waits_s = busy_s = 0.0
    for work_s, longer_s in zip(work.tolist(), longer):
        service_s = work_s if waits_s else work_s + longer_s
        busy_s += service_s
        responses.append(waits_s + service_s)
        waits_s = max(0.0, waits_s + service_s - period_s)  # of the next one
    ended_s = (queries - 1) * period_s + responses[-1]
    stable = query_s(curve, samples_per_query, min(batch_size, samples_per_query)) < period_s
    return summary(np.array(responses), queries * samples_per_query, ended_s, busy_s, stable=stable)


def simulate_poisson(
    curve: LatencyCurve, rate_per_s: float, batch_size: int, wait_s: float, queries: int, seed: int
) -> Response:
    """Single samples at random times. A batch leaves when the server is free and either `batch_size` samples are
    waiting or the oldest of them has waited for `wait_s`; it takes all that wait then, up to `batch_size`.
    """
    _check(rate_per_s=rate_per_s, batch_size=batch_size, queries=queries)
    if not 0 <= wait_s < math.inf:
        raise InputError(f"a wait is 0 s or more; got {wait_s}")
    draws = np.random.default_rng(seed)
    arrivals: list[float] = np.cumsum(draws.exponential(1 / rate_per_s, queries)).tolist()
    lots: list[int] = draws.integers(_DRAWS, size=queries).tolist()
    times, rested = (
        [[], *(seconds(curve, size).tolist() for size in range(1, batch_size + 1))]
        for seconds in (_service_times, _rested_times)
    )
    responses: list[float] = []
    free_s = busy_s = 0.0
    first = 0
    while first < queries:
        leaves_s = arrivals[first] + wait_s
        if first + batch_size <= queries:
            leaves_s = min(leaves_s, arrivals[first + batch_size - 1])
        leaves_s = max(leaves_s, free_s)
        after = bisect_right(arrivals, leaves_s, first, min(first + batch_size, queries))
        service_s = (rested if leaves_s > free_s else times)[after - first][lots[first]]
        free_s = leaves_s + service_s
        busy_s += service_s
        responses += [free_s - came_s for came_s in arrivals[first:after]]
        first = after
    stable = rate_per_s < curve.capacity_per_s(batch_size)
    return summary(np.array(responses), queries, free_s - arrivals[0], busy_s, stable=stable)


def summary(responses: Seconds, samples: int, span_s: float, busy_s: float, *, stable: bool) -> Response:
    """Responses in brief; percentiles are those that so many of a hundred do not exceed, as LoadGen has them."""
    ordered = np.sort(responses)
    p50, p90, p99 = (float(ordered[int(len(ordered) * share)]) for share in (0.50, 0.90, 0.99))
    return Response(
        mean_s=float(ordered.mean()),
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        throughput_per_s=samples / span_s,
        utilisation=min(1.0, busy_s / span_s),
        stable=stable,
        queries=len(ordered),
    )


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} is more than 0 and finite; got {value}")
