"""Local regression: what latency was usual at each point of a search.

Cleveland and Devlin's LOESS with straight lines: at each candidate a line is fitted to its nearest ones, those further
away counting less. Twenty lines here rather than statsmodels, which brings pandas for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SPAN = 0.5  # the share of all points that a line is fitted to
FEWEST = 5  # points of a line, where there are as many


def loess(values: Sequence[float], span: float = SPAN) -> list[float]:
    """The smoothed value at each place."""
    count = len(values)
    if count < 3:
        return [sum(values) / count] * count if count else []
    places, known = np.arange(count, dtype=float), np.asarray(values, dtype=float)
    near = min(count, max(FEWEST, round(span * count)))
    smoothed = []
    for place in places:
        distance = np.abs(places - place)
        reach = np.partition(distance, near - 1)[near - 1]
        weight = np.clip(1 - (distance / max(reach, 1e-9) * 0.999) ** 3, 0, None) ** 3
        total = weight.sum()
        middle, usual = (weight @ places) / total, (weight @ known) / total
        spread = weight @ (places - middle) ** 2
        slope = (weight @ ((places - middle) * (known - usual))) / spread if spread > 0 else 0.0
        smoothed.append(float(usual + slope * (place - middle)))
    return smoothed


def line_of(latencies: Sequence[float | None]) -> list[float | None]:
    """The usual latency at each candidate; those that failed are left out and have none. After a sudden fall a straight
    line goes too low: the usual latency is never less than the least."""
    known = [one for one in latencies if one is not None]
    least = min(known, default=0.0)
    smoothed = (max(one, least) for one in loess(known))
    return [None if one is None else next(smoothed) for one in latencies]
