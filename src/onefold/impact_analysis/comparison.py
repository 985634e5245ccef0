"""Two groups of models beside each other: whether they differ by more than chance, and by how much.

The p-value is that of the two-sided Mann-Whitney U test, which asks nothing of how values are distributed. Since many
values make any difference significant, Cliff's delta says how large it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from onefold.impact_analysis.sample_validation import Numbers, constant, measured
from onefold.vocabulary.errors import InputError

Magnitude = Literal["negligible", "small", "medium", "large"]
Method = Literal["exact", "asymptotic"]
# The usual words for Cliff's delta (Romano et al. 2006): each holds from its bound on.
MAGNITUDES: tuple[tuple[float, Magnitude], ...] = ((0.474, "large"), (0.33, "medium"), (0.147, "small"))
SMALL = 50  # values in the larger group up to which all ways to rank them are counted


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a sample differs from a baseline. What cannot be said of so few values is None, and `note` says why."""

    n: int
    n_baseline: int
    u: float | None  # pairs in which the sample's value is the higher one; equal values count half
    p: float | None
    delta: float | None  # Cliff's: from -1, all below the baseline, to 1, all above it
    magnitude: Magnitude | None
    method: Method | None  # how p was found
    note: str = ""


def compare_samples(sample: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """The sample beside the baseline: test, effect size and its word.

    The test is exact where no values are equal and no group is larger than SMALL, otherwise asymptotic with a
    correction for equal values. With fewer than two values on a side there is no test.
    """
    one, other = measured(sample, "the sample", least=0), measured(baseline, "the baseline", least=0)
    sizes, note = (len(one), len(other)), _note(one, other)
    if 0 in sizes:
        return Comparison(*sizes, None, None, None, None, None, note)
    above, below = _above_and_below(one, other)
    pairs = len(one) * len(other)
    delta = (above - below) / pairs
    p, method = _tested(one, other) if min(sizes) > 1 else (None, None)
    return Comparison(*sizes, above + (pairs - above - below) / 2, p, delta, magnitude(delta), method, note)


def cliffs_delta(sample: Sequence[float], baseline: Sequence[float]) -> float:
    """How much more often the sample's value is the higher one of a pair than the lower one, from -1 to 1."""
    one, other = measured(sample, "the sample"), measured(baseline, "the baseline")
    above, below = _above_and_below(one, other)
    return (above - below) / (len(one) * len(other))


def magnitude(delta: float) -> Magnitude:
    """The word for a Cliff's delta, whatever its sign."""
    if not -1 <= delta <= 1:
        raise InputError(f"a Cliff's delta lies between -1 and 1, but got {delta}")
    return next((word for bound, word in MAGNITUDES if abs(delta) >= bound), "negligible")


def _above_and_below(one: Numbers, other: Numbers) -> tuple[int, int]:
    """In how many pairs the first value is the higher, and in how many the lower one."""
    ordered = np.sort(other)
    above = int(np.searchsorted(ordered, one, side="left").sum())
    not_below = int(np.searchsorted(ordered, one, side="right").sum())
    return above, len(one) * len(other) - not_below


def _tested(one: Numbers, other: Numbers) -> tuple[float, Method]:
    from scipy.stats import mannwhitneyu

    pooled = np.concatenate([one, other])
    distinct = len(np.unique(pooled))
    if distinct == 1:
        return 1.0, "exact"  # however the values are dealt out, the groups come out as they did
    tied = distinct < len(pooled)
    method: Method = "asymptotic" if tied or max(len(one), len(other)) > SMALL else "exact"
    return float(mannwhitneyu(one, other, alternative="two-sided", method=method).pvalue), method


def _note(one: Numbers, other: Numbers) -> str:
    if len(one) < 2 or len(other) < 2:
        return f"no test: it takes two values on either side, and there are {len(one)} and {len(other)}"
    same = [name for name, numbers in (("sample", one), ("baseline", other)) if constant(numbers)]
    return f"all values of the {' and of the '.join(same)} are the same" if same else ""
