"""Relative differences between all pairs of models, before and after compression."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.impact_analysis.sample_validation import FloatArray, check_positive, check_same_length, checked_sample


@dataclass(frozen=True, slots=True)
class PairwiseDifferences:
    """Relative differences of all pairs, in the order (1, 2), (1, 3), …, before and after compression.

    `statistic` and `p` are those of the two-sample Kolmogorov-Smirnov test between the two; None without a pair. The
    test assumes independent pairs, but each model is in many of them, so that `p` is too small.
    """

    plain: tuple[float, ...]  # (m1 - m2) / m2
    compressed: tuple[float, ...]  # (m1' - m2') / m2'
    delta: tuple[float, ...]  # compressed - plain
    statistic: float | None
    p: float | None


def pairwise_differences(plain: Sequence[float], compressed: Sequence[float]) -> PairwiseDifferences:
    """Compare the differences between models before and after compression; both sequences list the same models.

    Differences are relative to the second model of a pair, so that the order decides their signs: list the best first.
    """
    before, after = checked_sample(plain, "the plain models"), checked_sample(compressed, "the compressed models")
    check_same_length(before, after, "plain and compressed models")
    of_plain, of_compressed = _differences(before, "plain"), _differences(after, "compressed")
    statistic, p = _kolmogorov_smirnov(of_plain, of_compressed) if len(of_plain) else (None, None)
    return PairwiseDifferences(
        tuple(of_plain.tolist()),
        tuple(of_compressed.tolist()),
        tuple((of_compressed - of_plain).tolist()),
        statistic,
        p,
    )


def _differences(numbers: FloatArray, which: str) -> FloatArray:
    first, second = np.triu_indices(len(numbers), k=1)
    check_positive(numbers, f"every value of the {which} models")
    return np.asarray((numbers[first] - numbers[second]) / numbers[second])


def _kolmogorov_smirnov(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    from scipy.stats import ks_2samp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the exact p-value fails, the approximation is near 1
        result = ks_2samp(first, second)
    return float(result.statistic), float(result.pvalue)
