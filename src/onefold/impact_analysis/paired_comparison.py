"""Compare pairs of models that differ in what an arm holds fixed: Wilcoxon signed-rank test and paired Cliff's delta.

Arms share draws, so that the difference within a pair is free of the variation between draws, which unpaired tests
take for noise. Differences are those of logarithms: they do not depend on which of the two is the reference, and a
large model does not outweigh small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.impact_analysis.comparison import Magnitude, magnitude
from onefold.impact_analysis.sample_validation import FloatArray, check_positive, check_same_length, checked_sample

DECIMALS = 12  # of differences; beyond, equal ratios differ by rounding


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """The comparison of a sample with its counterparts. Fields that need differing pairs are None; `note` says why."""

    n: int
    differing: int  # pairs whose values differ; the others carry no information on the sign
    w: float | None  # sum of the ranks of positive differences
    p: float | None
    delta: float | None  # share of pairs above their counterpart minus the share below
    magnitude: Magnitude | None
    note: str = ""


def compare_pairs(
    sample: Sequence[float], counterparts: Sequence[float], *, repeatability_limit: float = 0.0
) -> PairedComparison:
    """Return the two-sided exact test, the paired effect size and its magnitude; all values must be above 0.

    Values whose logarithms differ by no more than the repeatability limit are ties: repeated measurements of one model
    differ as much.
    """
    first, second = (checked_sample(values, "the values of pairs", 0) for values in (sample, counterparts))
    check_same_length(first, second, "a sample and its counterparts")
    if not len(first):
        return PairedComparison(0, 0, None, None, None, None, "no test: no pair was measured")
    check_positive(np.concatenate([first, second]), "the values of pairs")
    differences = np.round(np.log(first) - np.log(second), DECIMALS)
    differences[np.abs(differences) <= repeatability_limit] = 0.0
    delta = float(np.sign(differences).mean())
    differences = differences[differences != 0]
    if not len(differences):
        return PairedComparison(len(first), 0, None, None, delta, magnitude(delta), "no pair differs")
    w, p = _signed_rank(differences)
    return PairedComparison(len(first), len(differences), w, p, delta, magnitude(delta))


def smallest_p(pairs: int) -> float:
    """Return the smallest p-value that so many differing pairs can have."""
    return min(1.0, 2.0 ** (1 - pairs))


def _signed_rank(differences: FloatArray) -> tuple[float, float]:
    """Return the statistic and its exact p-value, over all signs of the ranks; scipy's is not exact with ties."""
    from scipy.stats import rankdata

    ranks = np.rint(2 * rankdata(np.abs(differences))).astype(int)  # doubled, so that ranks of ties are integers
    ways = np.ones(1)  # share of the signs for which the ranks of positive differences add up to the index
    for rank in ranks:
        ways = (np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))) / 2
    observed, sums = ranks[differences > 0].sum(), np.arange(len(ways))
    extreme = np.abs(2 * sums - ranks.sum()) >= abs(2 * observed - ranks.sum())
    return float(observed) / 2, min(1.0, float(ways[extreme].sum()))
