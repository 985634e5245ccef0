"""Points that were not measured, predicted from those that were: more threads, and batch sizes between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onefold.device.device import Device
from onefold.serving.queue_simulation import LatencyCurve
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint


def extrapolate_threads(served: Sequence[Served], wanted: Sequence[int], device: Device) -> list[Served]:
    """The points with more threads than were measured, by Amdahl's law from the two most threads that were.

    Where only one number of threads could be measured nothing is known about how threads help, and nothing is
    predicted. What is predicted says so.
    """
    measured = sorted({one.point.threads for one in served})
    missing = [threads for threads in wanted if threads > measured[-1]]
    if len(measured) < 2 or not missing:
        return []
    few, many = measured[-2:]
    known = {one.point: one for one in served}
    found = []
    for point, one in known.items():
        fewer = known.get(replace(point, threads=few))
        if point.threads != many or fewer is None:
            continue
        serial = serial_share(fewer.latency_s, few, one.latency_s, many)
        for threads in missing:
            factor = _amdahl(serial, threads) / _amdahl(serial, many)
            found.append(_scaled(one, replace(point, threads=threads), factor, device))
    return found


def interpolate_batch_size(served: Sequence[Served], point: ServingPoint) -> Served | None:
    """What a batch size between measured ones costs, by straight lines; None where the larger ones are not known.

    A point that is known comes back as it is. What is predicted says so.
    """
    alike = {one.point.batch_size: one for one in served if replace(one.point, batch_size=point.batch_size) == point}
    if point.batch_size in alike:
        return alike[point.batch_size]
    if not alike or point.batch_size > max(alike):
        return None
    sizes = sorted(alike)
    curve, nearest = LatencyCurve.of(alike.values()), alike[next(size for size in sizes if size > point.batch_size)]
    latency_s, (slow90, slow99) = curve.time_s(point.batch_size), curve.spread(point.batch_size)
    joules = [alike[size].energy.joules for size in sizes]
    known = [each for each in joules if each is not None]
    energy_j = float(np.interp(point.batch_size, sizes, known)) if len(known) == len(sizes) else None
    return replace(
        nearest,
        point=point,
        latency_s=latency_s,
        p90_s=latency_s * slow90,
        p99_s=latency_s * slow99,
        low_s=float(np.interp(point.batch_size, sizes, [alike[size].low_s for size in sizes])),
        high_s=float(np.interp(point.batch_size, sizes, [alike[size].high_s for size in sizes])),
        runs=0,
        after_rest_s=None,
        energy=Energy(energy_j, nearest.energy.source if energy_j is not None else "unavailable"),
        source=LatencySource.PREDICTED,
    )


def serial_share(few_s: float, few: int, many_s: float, many: int) -> float:
    """The share of the work that more threads do not help, from the times with few and with many; 0 to 1."""
    ratio = many_s / few_s
    # few_s = a (s + (1 - s) / few), many_s = a (s + (1 - s) / many), solved for s.
    below, above = ratio / few - 1 / many, (1 - 1 / many) - ratio * (1 - 1 / few)
    return min(1.0, max(0.0, below / above)) if above > 0 else 1.0


def _amdahl(serial: float, threads: int) -> float:
    return serial + (1 - serial) / threads


def _scaled(one: Served, point: ServingPoint, factor: float, device: Device) -> Served:
    latency_s = one.latency_s * factor
    return replace(
        one,
        point=point,
        latency_s=latency_s,
        p90_s=one.p90_s * factor,
        p99_s=one.p99_s * factor,
        low_s=one.low_s * factor,
        high_s=one.high_s * factor,
        runs=0,
        after_rest_s=None,
        energy=Energy(latency_s * device.power_w(point.threads), "modelled"),
        source=LatencySource.PREDICTED,
    )
