"""LOESS (Cleveland and Devlin) with local linear fits: the usual latency at each point of a search.

Implemented here in twenty lines, since statsmodels would bring pandas as a dependency.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SPAN = 0.5  # fraction of all points in a local fit
MIN_POINTS = 5  # of a local fit, if there are as many


def loess(values: Sequence[float], span: float = SPAN) -> list[float]:
    """Return the smoothed value at each position."""
    count = len(values)
    if count < 3:
        return [sum(values) / count] * count if count else []
    positions, known = np.arange(count, dtype=float), np.asarray(values, dtype=float)
    neighbors = min(count, max(MIN_POINTS, round(span * count)))
    smoothed = []
    for position in positions:
        distance = np.abs(positions - position)
        bandwidth = np.partition(distance, neighbors - 1)[neighbors - 1]
        weight = np.clip(1 - (distance / max(bandwidth, 1e-9) * 0.999) ** 3, 0, None) ** 3  # tricube
        total = weight.sum()
        mean_position, mean_value = (weight @ positions) / total, (weight @ known) / total
        variance = weight @ (positions - mean_position) ** 2
        covariance = weight @ ((positions - mean_position) * (known - mean_value))
        slope = covariance / variance if variance > 0 else 0.0
        smoothed.append(float(mean_value + slope * (position - mean_position)))
    return smoothed


def fit_latencies(latencies: Sequence[float | None]) -> list[float | None]:
    """Return the LOESS fit at each candidate, None for failed ones.

    A linear fit undershoots after a sudden drop, so the fit is never below the smallest latency.
    """
    known = [latency for latency in latencies if latency is not None]
    smallest = min(known, default=0.0)
    smoothed = (max(value, smallest) for value in loess(known))
    return [None if latency is None else next(smoothed) for latency in latencies]
