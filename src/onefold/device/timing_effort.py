"""How hard to try to know a latency, and how well it is known then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingEffort:
    """Repeat at least `least` times, until the 95 % interval of the median is within ± `precision` of it.

    Give up on that after `most` runs or after `seconds`. Batches that would take longer than `slowest_s` are not tried.
    With `rest_s` each run comes after a rest of so long, as a request does that finds an idle server.
    """

    warm_up: int = 2
    least: int = 5
    most: int = 1000
    seconds: float = 0.5
    precision: float = 0.02
    slowest_s: float = 2.0
    rest_s: float = 0.0


STANDARD = TimingEffort(warm_up=2, least=10, most=400, seconds=0.03, precision=0.02)  # enough to find the best point
QUICK = TimingEffort(warm_up=1, least=3, most=60, seconds=0.008, precision=0.03, slowest_s=0.05)  # while trials wait
PRECISE = TimingEffort(warm_up=3, least=30, most=2000, seconds=0.1, precision=0.01)  # what is written on the label
AFTER_IDLE = TimingEffort(
    warm_up=1, least=20, most=200, seconds=0.15, precision=0.02, rest_s=0.002
)  # by an idle server


def interval(times: Sequence[float]) -> tuple[float, float, float]:
    """The median between the ends of its 95 % confidence interval, by order statistics: no shape is assumed."""
    ordered = sorted(times)
    count = len(ordered)
    reach = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], quantile(ordered, 0.5), ordered[high]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the ordered values does not exceed, interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
