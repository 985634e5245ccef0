"""Descriptive statistics of one property over several models: spread, best models, relative differences.

Properties such as accuracy, latency and size are above 0, so that relative differences are defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.impact_analysis.sample_validation import FloatArray, check_positive, check_same_length, checked_sample
from onefold.vocabulary.errors import InputError


@dataclass(frozen=True, slots=True)
class BestDifference:
    """A property of the best model of an arm, compared with that of the best model of the baseline."""

    arm: float
    baseline: float
    relative: float  # (arm - baseline) / baseline
    higher_is_better: bool

    @property
    def better(self) -> bool:
        """Return whether the property of the arm's best model is better."""
        return self.relative > 0 if self.higher_is_better else self.relative < 0


def scaled(values: Sequence[float]) -> tuple[float, ...]:
    """Return the values as multiples of the smallest, so that properties of different units share an axis."""
    numbers = checked_sample(values, "the values to scale")
    return _to_tuple(numbers / check_positive(numbers.min(keepdims=True), "the smallest value"))


def best_difference(
    arm: Sequence[float],
    baseline: Sequence[float],
    *,
    higher_is_better: bool,
    by: tuple[Sequence[float], Sequence[float]] | None = None,
) -> BestDifference:
    """Compare the best model of an arm with the best model of the baseline in one property.

    `by` holds the scores of both groups, model by model and higher is better, that decide which model is best: the
    paper compares the latency or the size of the most accurate models. Without it, the best value of the property
    itself counts. `higher_is_better` refers to the property.
    """
    groups = checked_sample(arm, "the values of the arm"), checked_sample(baseline, "the values of the baseline")
    if by is None:
        of_arm, of_baseline = (_best_value(group, higher_is_better) for group in groups)
    else:
        of_arm, of_baseline = (_value_of_best(group, scores) for group, scores in zip(groups, by))
    relative = (of_arm - of_baseline) / float(check_positive(np.array([of_baseline]), "the baseline's best")[0])
    return BestDifference(of_arm, of_baseline, relative, higher_is_better)


def lard(values: Sequence[float], *, higher_is_better: bool) -> float:
    """Return the largest absolute relative deviation (LARD): |best - worst| / worst.

    It is dimensionless, so that the same models can be compared across devices. Where lower is better it is below 1;
    the paper's table has values up to 44 for sizes, so it must have divided by the best there.
    """
    numbers = checked_sample(values, "the values")
    best, worst = _best_value(numbers, higher_is_better), _best_value(numbers, not higher_is_better)
    if best == worst:
        return 0.0
    if worst == 0:
        raise InputError("the worst value must not be 0, since the deviation is relative to it; leave that model out")
    return abs((best - worst) / worst)


def relative_difference(compressed: Sequence[float], plain: Sequence[float]) -> tuple[float, ...]:
    """Return the relative change of each model by compression: (compressed - plain) / plain."""
    after, before = checked_sample(compressed, "the compressed models"), checked_sample(plain, "the plain models")
    check_same_length(after, before, "compressed and plain models")
    return _to_tuple((after - before) / check_positive(before, "the plain values"))


def _best_value(numbers: FloatArray, higher_is_better: bool) -> float:
    return float(numbers.max() if higher_is_better else numbers.min())


def _value_of_best(group: FloatArray, scores: Sequence[float]) -> float:
    checked = checked_sample(scores, "the scores")
    check_same_length(group, checked, "values and scores")
    return float(group[checked.argmax()])


def _to_tuple(numbers: FloatArray) -> tuple[float, ...]:
    return tuple(float(number) for number in numbers)
