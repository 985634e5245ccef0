"""Many tests at once: p-values raised so that asking often enough does not find what is not there.

A test that could not be made (None) stays None and does not count as asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onefold.impact_analysis.sample_validation import Numbers, measured
from onefold.vocabulary.errors import InputError

PValues = Sequence[float | None]


def holm(ps: PValues) -> tuple[float | None, ...]:
    """P-values after Holm: below 0.05 with at most 5 % chance that even one of them is a false alarm."""
    return _adjusted(ps, _stepped_down)


def benjamini_hochberg(ps: PValues) -> tuple[float | None, ...]:
    """P-values after Benjamini and Hochberg: of those below 0.05, some 5 % at most are false alarms."""
    return _adjusted(ps, _stepped_up)


def _adjusted(ps: PValues, rule: Callable[[Numbers], Numbers]) -> tuple[float | None, ...]:
    asked = [place for place, p in enumerate(ps) if p is not None]
    known = measured([p for p in ps if p is not None], "p-values", least=0)
    if ((known < 0) | (known > 1)).any():
        raise InputError(f"a p-value lies between 0 and 1, but got {known[(known < 0) | (known > 1)][0]}")
    order = np.argsort(known, kind="stable")
    adjusted: list[float | None] = [None] * len(ps)
    for place, p in zip(order, np.minimum(rule(known[order]), 1.0)):
        adjusted[asked[int(place)]] = float(p)
    return tuple(adjusted)


def _stepped_down(ascending: Numbers) -> Numbers:
    # The least of m is one of m chances to be wrong, the next one of m - 1, …; no p may undercut a smaller one's.
    return np.maximum.accumulate(ascending * np.arange(len(ascending), 0, -1))


def _stepped_up(ascending: Numbers) -> Numbers:
    # Were the i least all called findings, p * m false alarms would be expected among these i.
    expected = ascending * len(ascending) / np.arange(1, len(ascending) + 1)
    return np.asarray(np.minimum.accumulate(expected[::-1])[::-1])
