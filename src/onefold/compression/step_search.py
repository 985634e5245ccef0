"""Find after how many steps a condition holds, with few evaluations of it."""

from __future__ import annotations

from collections.abc import Callable

MAX_SCANNED = 24  # evaluations of a scan, before the one that holds is refined


def first_by_bisection(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number from `low` to `high` for which a monotone condition holds; `high` + 1 if none."""
    high += 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def first_by_scan(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first number from `low` to `high` for which any condition holds; `high` + 1 if there is none.

    Of more than MAX_SCANNED numbers, evenly spaced ones are evaluated and then those before the first that holds, where
    the condition is taken to be monotone.
    """
    scanned = min(MAX_SCANNED, high - low + 1)
    before = low - 1
    for index in range(scanned):
        number = low + round(index * (high - low) / max(1, scanned - 1))
        if holds(number):
            return first_by_bisection(before + 1, number - 1, holds)
        before = number
    return high + 1
