"""Units and scales of latency axes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from onefold.report.plots.scale import Scale, unit_of

SHORT_S, LONG_S = 1e-3, 0.1  # microseconds, where one is below the first and all are below the second


def drawable(latency_s: float | None) -> bool:
    """Return whether a latency can be drawn on a logarithmic axis."""
    return latency_s is not None and math.isfinite(latency_s) and latency_s > 0


def latency_unit(latencies: Iterable[float]) -> tuple[str, float]:
    """Return the name and size of a unit for these latencies."""
    values = list(latencies)
    short = bool(values) and min(values) < SHORT_S and max(values) < LONG_S
    return ("µs", 1e-6) if short else unit_of("latency_s", values)


def logarithmic(latencies: Iterable[float], start: float, end: float, unit: float = 1.0) -> Scale:
    """Return a logarithmic scale with a margin around the latencies."""
    values = list(latencies)
    low, high = min(values), max(values)
    room = max((high / low) ** 0.06, 1.05)
    return Scale(low / room, high * room, start, end, log=True, unit=unit)
