"""Compare two samples: Mann-Whitney U test and Cliff's delta as effect size.

The U test makes no assumption on the distribution. Since large samples make any difference significant, the effect size
says how large it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from onefold.impact_analysis.sample_validation import FloatArray, checked_sample, is_constant
from onefold.vocabulary.errors import InputError

Magnitude = Literal["negligible", "small", "medium", "large"]
Method = Literal["exact", "asymptotic"]
# Thresholds of |delta| after Romano et al. (2006).
MAGNITUDES: tuple[tuple[float, Magnitude], ...] = ((0.474, "large"), (0.33, "medium"), (0.147, "small"))
MAX_EXACT_SIZE = 50  # of the larger sample, up to which the exact distribution of U is used


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a sample with a baseline. Fields that need more values are None, and `note` says why."""

    n: int
    n_baseline: int
    u: float | None  # number of pairs in which the sample's value is higher; ties count half
    p: float | None
    delta: float | None  # Cliff's delta: from -1, all below the baseline, to 1, all above it
    magnitude: Magnitude | None
    method: Method | None  # of computing p
    note: str = ""


def compare_samples(sample: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Return the two-sided test, the effect size and its magnitude.

    The test is exact without ties and up to MAX_EXACT_SIZE values; otherwise asymptotic with a correction for ties.
    With fewer than two values in a sample there is no test.
    """
    first, second = checked_sample(sample, "the sample", 0), checked_sample(baseline, "the baseline", 0)
    sizes, note = (len(first), len(second)), _note(first, second)
    if 0 in sizes:
        return Comparison(*sizes, None, None, None, None, None, note)
    above, below = _count_pairs(first, second)
    pairs = len(first) * len(second)
    delta = (above - below) / pairs
    p, method = _mann_whitney(first, second) if min(sizes) > 1 else (None, None)
    return Comparison(*sizes, above + (pairs - above - below) / 2, p, delta, magnitude(delta), method, note)


def magnitude(delta: float) -> Magnitude:
    """Return the conventional label of a Cliff's delta."""
    if not -1 <= delta <= 1:
        raise InputError(f"Cliff's delta must lie between -1 and 1, but got {delta}")
    return next((label for bound, label in MAGNITUDES if abs(delta) >= bound), "negligible")


def _count_pairs(first: FloatArray, second: FloatArray) -> tuple[int, int]:
    """Return the number of pairs in which the first value is higher, and lower; scipy has no Cliff's delta."""
    ordered = np.sort(second)
    above = int(np.searchsorted(ordered, first, side="left").sum())
    not_below = int(np.searchsorted(ordered, first, side="right").sum())
    return above, len(first) * len(second) - not_below


def _mann_whitney(first: FloatArray, second: FloatArray) -> tuple[float, Method]:
    from scipy.stats import mannwhitneyu

    pooled = np.concatenate([first, second])
    distinct = len(np.unique(pooled))
    if distinct == 1:
        return 1.0, "exact"  # scipy divides by zero here
    has_ties = distinct < len(pooled)
    method: Method = "asymptotic" if has_ties or max(len(first), len(second)) > MAX_EXACT_SIZE else "exact"
    return float(mannwhitneyu(first, second, alternative="two-sided", method=method).pvalue), method


def _note(first: FloatArray, second: FloatArray) -> str:
    if len(first) < 2 or len(second) < 2:
        return f"no test: both samples need at least two values, but have {len(first)} and {len(second)}"
    constant = [name for name, numbers in (("sample", first), ("baseline", second)) if is_constant(numbers)]
    return f"all values of the {' and of the '.join(constant)} are the same" if constant else ""
