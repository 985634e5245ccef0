"""Models two by two, before and after compression: whether they still differ as they did."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.impact_analysis.descriptive_statistics import above_zero
from onefold.impact_analysis.sample_validation import Numbers, measured, together


@dataclass(frozen=True, slots=True)
class PairwiseDifferences:
    """All pairs of models, first with second, first with third, …: their relative differences before and after.

    `statistic` and `p` are those of the Kolmogorov-Smirnov test between the two; None without a pair. The test takes
    pairs for independent, while each model is in many of them: a small p says more than there is to know.
    """

    plain: tuple[float, ...]  # (m1 - m2) / m2
    compressed: tuple[float, ...]  # (m1' - m2') / m2'
    delta: tuple[float, ...]  # compressed - plain
    statistic: float | None
    p: float | None


def pairwise_differences(plain: Sequence[float], compressed: Sequence[float]) -> PairwiseDifferences:
    """How the differences between models changed by compression; both in the same order, model by model.

    The differences are shares of the pair's second model, so that the order of the models decides their signs: give
    them best first.
    """
    before, after = measured(plain, "the plain models"), measured(compressed, "the compressed models")
    together(before, after, "plain and compressed models")
    of_plain, of_compressed = _differences(before, "plain"), _differences(after, "compressed")
    statistic, p = _tested(of_plain, of_compressed) if len(of_plain) else (None, None)
    plain_pairs, compressed_pairs = tuple(of_plain.tolist()), tuple(of_compressed.tolist())
    return PairwiseDifferences(plain_pairs, compressed_pairs, tuple((of_compressed - of_plain).tolist()), statistic, p)


def _differences(numbers: Numbers, which: str) -> Numbers:
    first, second = np.triu_indices(len(numbers), k=1)
    above_zero(numbers, f"every value of the {which} models")
    return np.asarray((numbers[first] - numbers[second]) / numbers[second])


def _tested(one: Numbers, other: Numbers) -> tuple[float, float]:
    from scipy.stats import ks_2samp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where exact counting fails, the approximation is near 1
        found = ks_2samp(one, other)
    return float(found.statistic), float(found.pvalue)
