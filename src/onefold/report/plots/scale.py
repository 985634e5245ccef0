"""Scales from values to pixels, and round tick labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MANY_MAGNITUDES = 300.0  # positive values that differ by more than this factor are shown on a logarithmic scale
UNITS = {
    "_per_s": (("per s", 1.0),),
    "_s": (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0)),
    "_j": (("mJ", 1e-3), ("J", 1.0), ("kJ", 1e3), ("MJ", 1e6)),
    "_bytes": (("B", 1.0), ("KiB", 1024.0), ("MiB", 1024.0**2), ("GiB", 1024.0**3)),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low` to `start` and `high` to `end`; labels count in `unit`s."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    unit: float = 1.0

    def __call__(self, value: float) -> float:
        """Return the position of a value, clipped to the scale."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            # Halved, since the difference of two huge numbers may overflow.
            share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[tuple[float, str]]:
        """Return the positions and labels of about `wanted` round values."""
        low, high = self.low / self.unit, self.high / self.unit
        values = _magnitudes(low, high, wanted) if self.log else []
        if len(values) >= 2:
            return [(self(value * self.unit), _tick_label(value, value)) for value in values]
        step = _round_step(high / wanted - low / wanted)
        first = math.ceil(low / step - 1e-9)
        values = [(first + i) * step for i in range(math.floor(high / step + 1e-9) - first + 1)]
        return [(self(value * self.unit), _tick_label(value, step)) for value in values]


def fitted(values: Iterable[float], start: float, end: float, unit: float = 1.0) -> Scale:
    """Return a scale over all finite values with a small margin."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if low > 0 and high / low > MANY_MAGNITUDES:
        room = min(high / low, 1e300) ** 0.04
        return Scale(low / room or low, min(high * room, 1e308), start, end, True, unit)
    if high / 2 - low / 2 <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) * 0.05 or 1.0
    else:
        room = (high / 2 - low / 2) * 0.1
    return Scale(max(low - room, -1e308), min(high + room, 1e308), start, end, False, unit)


def unit_of(metric: str, values: Iterable[float]) -> tuple[str, float]:
    """Return the name and size of the unit that suits the values of a metric; ("", 1) for a metric without one."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    metric = metric.partition("@")[0]  # without the device
    for suffix, units in UNITS.items():
        if metric.endswith(suffix):
            fitting = [(name, size) for name, size in units if size * 2 <= largest]
            return fitting[-1] if fitting else units[0]
    return "", 1.0


def with_unit(title: str, unit: str) -> str:
    """Return the title of an axis that counts in a unit, if there is one."""
    return f"{title} ({unit})" if unit else title


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(m for m in (magnitude, 2 * magnitude, 5 * magnitude, 10 * magnitude) if m >= rough * 0.75)


def _magnitudes(low: float, high: float, wanted: int) -> list[float]:
    """Return powers of ten, thinned if there are many; with 2 and 5 times each if there are few."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first >= 2:
        every = max(1, math.ceil((last - first + 1) / (wanted + 1)))
        return [10.0**power for power in range(first, last + 1) if power % every == 0]
    between = [mantissa * 10.0**power for power in range(first - 1, last + 1) for mantissa in (1, 2, 5)]
    return [value for value in between if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _tick_label(value: float, step: float) -> str:
    """Format a value with as many digits as the step needs."""
    if value == 0 or abs(value) < abs(step) * 1e-6:
        return "0"
    size = max(abs(value), abs(step))
    places = max(0, -math.floor(math.log10(abs(step)) + 1e-9))
    if size >= 1e6 or places > 7 or size < 1e-3:
        digits = max(0, math.floor(math.log10(abs(value))) - math.floor(math.log10(abs(step)) + 1e-9))
        mantissa, exponent = f"{value:.{min(digits, 12)}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
    return f"{value:,.{places}f}"
