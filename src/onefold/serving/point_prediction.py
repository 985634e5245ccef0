"""Predict serving points from measured ones: more threads, and batch sizes in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onefold.device.device import Device
from onefold.serving.queue_simulation import LatencyCurve
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint

# Of 95 % prediction intervals: the log of latencies over predictions in benchmarks/emulations/recordings, for twice as
# many threads as were measured, and the factor for batches of 8 between those of 1 and 32.
THREAD_DOUBT = 0.55
BATCH_DOUBT = 1.35


def extrapolate_threads(served: Sequence[Served], threads: Sequence[int], device: Device) -> list[Served]:
    """Predict the points with more threads than were measured, by Amdahl's law from the two largest measured counts.

    Returns nothing if only one thread count was measured. Predictions are labeled as such, with an interval that grows
    with the distance to the measured counts and ends at a perfect speed-up.
    """
    measured = sorted({point.point.threads for point in served})
    missing = [count for count in threads if count > measured[-1]]
    if len(measured) < 2 or not missing:
        return []
    few, many = measured[-2:]
    by_point = {known.point: known for known in served}
    predicted = []
    for point, known in by_point.items():
        with_fewer = by_point.get(replace(point, threads=few))
        if point.threads != many or with_fewer is None:
            continue
        serial = serial_share(with_fewer.latency_s, few, known.latency_s, many)
        for count in missing:
            factor = _amdahl(serial, count) / _amdahl(serial, many)
            predicted.append(_scale(known, replace(point, threads=count), factor, device))
    return predicted


def interpolate_batch_size(served: Sequence[Served], point: ServingPoint) -> Served | None:
    """Return the cost of a batch size between measured ones by linear interpolation.

    A known point is returned unchanged. Returns None if no larger batch size is known. Predictions are labeled as such.
    """
    by_size = {
        known.point.batch_size: known for known in served if replace(known.point, batch_size=point.batch_size) == point
    }
    if point.batch_size in by_size:
        return by_size[point.batch_size]
    if not by_size or point.batch_size > max(by_size):
        return None
    sizes = sorted(by_size)
    curve = LatencyCurve.of(by_size.values())
    next_larger = by_size[next(size for size in sizes if size > point.batch_size)]
    latency_s, (p90_ratio, p99_ratio) = curve.time_s(point.batch_size), curve.spread(point.batch_size)
    joules = [joules for size in sizes if (joules := by_size[size].energy.joules) is not None]
    energy_j = float(np.interp(point.batch_size, sizes, joules)) if len(joules) == len(sizes) else None
    return replace(
        next_larger,
        point=point,
        latency_s=latency_s,
        p90_s=latency_s * p90_ratio,
        p99_s=latency_s * p99_ratio,
        low_s=float(np.interp(point.batch_size, sizes, [by_size[size].low_s for size in sizes])) / BATCH_DOUBT,
        high_s=float(np.interp(point.batch_size, sizes, [by_size[size].high_s for size in sizes])) * BATCH_DOUBT,
        runs=0,
        after_rest_s=None,
        energy=Energy(energy_j, next_larger.energy.source if energy_j is not None else "unavailable"),
        source=LatencySource.PREDICTED,
    )


def serial_share(few_s: float, few: int, many_s: float, many: int) -> float:
    """Return the serial fraction of Amdahl's law, 0 to 1, from the latencies with few and with many threads."""
    ratio = many_s / few_s
    # few_s = a (s + (1 - s) / few), many_s = a (s + (1 - s) / many), solved for s.
    numerator, denominator = ratio / few - 1 / many, (1 - 1 / many) - ratio * (1 - 1 / few)
    return min(1.0, max(0.0, numerator / denominator)) if denominator > 0 else 1.0


def _amdahl(serial: float, threads: int) -> float:
    return serial + (1 - serial) / threads


def _scale(known: Served, point: ServingPoint, factor: float, device: Device) -> Served:
    latency_s = known.latency_s * factor
    doubt = math.exp(THREAD_DOUBT * math.sqrt(math.log2(point.threads / known.point.threads)))
    perfect = known.low_s * known.point.threads / point.threads
    return replace(
        known,
        point=point,
        latency_s=latency_s,
        p90_s=known.p90_s * factor,
        p99_s=known.p99_s * factor,
        low_s=min(latency_s, max(perfect, known.low_s * factor / doubt)),
        high_s=max(latency_s, known.high_s * factor * doubt),
        runs=0,
        after_rest_s=None,
        energy=Energy(latency_s * device.power_w(point.threads), "modelled"),
        source=LatencySource.PREDICTED,
    )
