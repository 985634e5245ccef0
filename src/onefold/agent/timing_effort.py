"""How many runs a latency measurement takes, and how precise its median is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TimingEffort:
    """When to stop repeating a timed batch.

    After `warm_up_runs` untimed runs, repeat at least `min_runs` times until the 95 % confidence interval of the median
    is within ± `precision` of it, but stop after `max_runs` runs or `max_seconds`. Batches expected to take longer than
    `max_batch_s` are not measured. With `idle_s`, each run follows an idle gap of that length, as a request does that
    finds an idle server.
    """

    warm_up_runs: int = 2
    min_runs: int = 5
    max_runs: int = 1000
    max_seconds: float = 0.5
    precision: float = 0.02
    max_batch_s: float = 2.0
    idle_s: float = 0.0


QUICK = TimingEffort(1, 3, 60, 0.008, 0.03, max_batch_s=0.05)  # while the trials of a study are paused
STANDARD = TimingEffort(2, 10, 400, 0.03, 0.02)  # finds the best serving point
PRECISE = TimingEffort(3, 30, 2000, 0.1, 0.01)  # for the figures of a deployment
AFTER_IDLE = TimingEffort(1, 20, 200, 0.15, 0.02, idle_s=0.002)  # wake-up latency of an idle server


def median_interval(times: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower end, the median and the upper end of its distribution-free 95 % confidence interval."""
    ordered = sorted(times)
    count = len(ordered)
    reach = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], quantile(ordered, 0.5), ordered[high]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values, interpolated linearly (by hand: an idle agent loads no numpy)."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
