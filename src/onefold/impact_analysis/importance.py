"""Which hyperparameters make a property what it is, alone and two together: functional analysis of variance.

found = importance(configs, latencies, space)
found.singles[0].parameters, found.singles[0].share       # the most important one, and its share of the variance
found.of("width", "depth").share                          # what these two do beyond what each does alone

A random forest learns the property from the configurations; the variance of each of its trees over the whole space is
split exactly. Other than a correlation it sees what goes up and down again, and what takes two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from onefold.impact_analysis.axes import Axis, Configuration, axes_of
from onefold.impact_analysis.sample_validation import ROUNDING, Numbers, constant, measured
from onefold.impact_analysis.variance_decomposition import decomposed, leaves_of
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.space import Space

LITTLE = 10  # configurations below which a forest mostly learns by heart


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the variance one hyperparameter explains, or two beyond what each explains alone."""

    parameters: tuple[str, ...]
    share: float  # from 0 to 1, the mean over the trees
    spread: float  # the standard deviation over the trees


@dataclass(frozen=True, slots=True)
class Importance:
    """The shares of each hyperparameter and of each two, largest first; what is left to 1 takes three or more.

    `explained` is how much of the variance the forest foretells of models that it has not seen, at most 1: when it is
    near 0 or below, the shares are those of noise. None where there is nothing to foretell.
    """

    singles: tuple[Share, ...]
    pairs: tuple[Share, ...]
    explained: float | None
    n: int
    note: str = ""

    def of(self, *parameters: str) -> Share:
        """The share of one hyperparameter, or of two, in any order."""
        for share in self.singles + self.pairs:
            if sorted(share.parameters) == sorted(parameters):
                return share
        known = ", ".join(share.parameters[0] for share in self.singles)
        raise InputError(f"shares are known of one or two of the hyperparameters {known}, but got {parameters!r}")


def importance(
    configs: Sequence[Configuration],
    values: Sequence[float],
    space: Space | None = None,
    *,
    trees: int = 64,
    seed: int = 0,
) -> Importance:
    """The importance of hyperparameters for a property, given by its value for each configuration.

    With a space, its hyperparameters are looked at, over their ranges; otherwise all that the configurations hold, over
    the values that were seen. Where nothing differs all shares are 0. Being absent counts as a value, so that a
    conditional hyperparameter and the one it depends on take parts of each other's share: read them together.
    """
    numbers = measured(values, "the values")
    if len(configs) != len(numbers):
        raise InputError(f"each configuration has one value, but got {len(configs)} and {len(numbers)}")
    if trees < 1:
        raise InputError(f"a forest has at least one tree, but got {trees}")
    axes = axes_of(configs, space)
    note = f"only {len(numbers)} to learn from" if len(numbers) < LITTLE else ""
    if constant(numbers) or not axes:
        note = "; ".join(filter(None, ["nothing differs, so nothing is important", note]))
        return Importance(*_ranked(axes, np.zeros((1, _count(axes)))), None, len(numbers), note)
    points = np.array([[axis.place(config) for axis in axes] for config in configs])
    # What a share of the variance is does not depend on the unit, but what rounding is does.
    forest = _fitted(points, (numbers - numbers.mean()) / numbers.std(), trees, seed)
    return Importance(*_ranked(axes, _shares(forest, axes)), _explained(forest, points), len(numbers), note)


@dataclass(frozen=True, slots=True)
class _Forest:
    trees: tuple[Any, ...]  # regression trees of scikit-learn
    drawn: tuple[Any, ...]  # the places of the configurations that each has seen
    values: Numbers  # of all configurations, with mean 0 and variance 1


def _fitted(points: Numbers, values: Numbers, trees: int, seed: int) -> _Forest:
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(n_estimators=trees, random_state=seed).fit(points, values)
    return _Forest(tuple(forest.estimators_), tuple(forest.estimators_samples_), values)


def _shares(forest: _Forest, axes: Sequence[Axis]) -> Numbers:
    """Of each single and then each pair, a row for each tree; trees that are the same everywhere say nothing."""
    found = [decomposed(leaves_of(tree.tree_), axes) for tree in forest.trees]
    rows = [np.concatenate([each.singles, each.pairs]) / each.total for each in found if each.total > ROUNDING]
    return np.array(rows or [np.zeros(_count(axes))])


def _explained(forest: _Forest, points: Numbers) -> float | None:
    """The coefficient of determination over what each configuration gets from the trees that have not seen it."""
    sums, votes = np.zeros(len(points)), np.zeros(len(points))
    for tree, drawn in zip(forest.trees, forest.drawn):
        unseen = np.setdiff1d(np.arange(len(points)), drawn)
        if len(unseen):
            sums[unseen] += tree.predict(points[unseen])
            votes[unseen] += 1
    known = votes > 0
    actual = forest.values[known]
    if not known.any() or constant(actual):
        return None
    missed = float(((actual - sums[known] / votes[known]) ** 2).sum())
    return 1.0 - missed / float(((actual - actual.mean()) ** 2).sum())


def _ranked(axes: Sequence[Axis], shares: Numbers) -> tuple[tuple[Share, ...], tuple[Share, ...]]:
    together = [some for size in (1, 2) for some in combinations(axes, size)]
    figures = zip(together, shares.mean(axis=0), shares.std(axis=0))
    found = [Share(tuple(axis.name for axis in some), float(mean), float(std)) for some, mean, std in figures]
    singles, pairs = found[: len(axes)], found[len(axes) :]
    return _largest_first(singles), _largest_first(pairs)


def _largest_first(shares: Sequence[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: -share.share))


def _count(axes: Sequence[Axis]) -> int:
    return len(axes) * (len(axes) + 1) // 2
