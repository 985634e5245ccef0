"""One property of several models: how far they lie apart, which are best, and how far two groups' best are apart.

Properties are quantities above 0 such as accuracies, latencies and sizes, so that one can be a share of another.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from onefold.impact_analysis.sample_validation import Numbers, measured, together
from onefold.vocabulary.errors import InputError

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class BestDifference:
    """A property of the best model of an arm, beside that of the best model of the baseline."""

    arm: float
    baseline: float
    relative: float  # (arm - baseline) / baseline
    higher_is_better: bool

    @property
    def better(self) -> bool:
        """Whether the arm's best model has the better property."""
        return self.relative > 0 if self.higher_is_better else self.relative < 0


def scaled(values: Sequence[float]) -> tuple[float, ...]:
    """The values as multiples of their least, so that properties of different units can be drawn side by side."""
    numbers = measured(values, "the values to scale")
    return _tuple(numbers / above_zero(numbers.min(keepdims=True), "the least value"))


def best(scores: Mapping[Key, float], k: int, *, higher_is_better: bool = True) -> tuple[Key, ...]:
    """The keys of the k best scores, best first and equals in the order given; all keys where there are fewer."""
    if k < 1:
        raise InputError(f"the number of best models must be at least 1, but got {k}")
    measured(list(scores.values()), "the scores", least=0)
    # sorted() keeps equals in their order also when it is reversed.
    return tuple(sorted(scores, key=lambda key: scores[key], reverse=higher_is_better)[:k])


def best_difference(
    arm: Sequence[float],
    baseline: Sequence[float],
    *,
    higher_is_better: bool,
    by: tuple[Sequence[float], Sequence[float]] | None = None,
) -> BestDifference:
    """How the best model of an arm differs in a property from the best model of the baseline.

    `by` gives the scores of both groups, model by model and higher is better, that say which model is best: the study
    looks at the latency or the size of the most accurate one. Without them the best value of the property itself is
    taken. `higher_is_better` speaks of the property.
    """
    groups = measured(arm, "the values of the arm"), measured(baseline, "the values of the baseline")
    if by is None:
        of_arm, of_baseline = (_best_of(group, higher_is_better) for group in groups)
    else:
        of_arm, of_baseline = (_chosen(group, scores) for group, scores in zip(groups, by))
    relative = (of_arm - of_baseline) / float(above_zero(np.array([of_baseline]), "the baseline's best")[0])
    return BestDifference(of_arm, of_baseline, relative, higher_is_better)


def lard(values: Sequence[float], *, higher_is_better: bool) -> float:
    """The largest absolute relative deviation: how far the best value is from the worst, as a share of the worst.

    It has no unit, so that models on one device can be compared with the same models on another. Where lower is better
    it is below 1; the study has up to 44 for sizes in its table, so that it must have divided by the best there.
    """
    numbers = measured(values, "the values")
    best_one, worst = _best_of(numbers, higher_is_better), _best_of(numbers, not higher_is_better)
    if best_one == worst:
        return 0.0
    if worst == 0:
        raise InputError("the deviation is a share of the worst value, which must not be 0; leave that model out")
    return abs((best_one - worst) / worst)


def relative_difference(compressed: Sequence[float], plain: Sequence[float]) -> tuple[float, ...]:
    """What compression changed about each model, as a share of what it was: (compressed - plain) / plain."""
    after, before = measured(compressed, "the compressed models"), measured(plain, "the plain models")
    together(after, before, "compressed and plain models")
    return _tuple((after - before) / above_zero(before, "the plain values"))


def above_zero(numbers: Numbers, what: str) -> Numbers:
    """The numbers, if one can take shares of them; otherwise raises InputError."""
    if (numbers <= 0).any():
        raise InputError(f"{what} must be above 0 to take shares of it, but got {numbers.min()}; leave that model out")
    return numbers


def _best_of(numbers: Numbers, higher_is_better: bool) -> float:
    return float(numbers.max() if higher_is_better else numbers.min())


def _chosen(group: Numbers, scores: Sequence[float]) -> float:
    rated = measured(scores, "the scores")
    together(group, rated, "values and scores")
    return float(group[rated.argmax()])


def _tuple(numbers: Numbers) -> tuple[float, ...]:
    return tuple(float(number) for number in numbers)
