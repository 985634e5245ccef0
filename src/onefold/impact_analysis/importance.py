"""Importance of hyperparameters for a property, alone and in pairs, by functional ANOVA (fANOVA).

result = importance(configs, latencies, space)
result.singles[0].parameters, result.singles[0].share      # the most important one, and its share of the variance
result.of("width", "depth").share                          # their interaction, beyond what each explains alone

A random forest learns the property from the configurations; the variance of each of its trees over the space is
decomposed exactly. Unlike a correlation, it captures non-monotonic effects and interactions.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from onefold.impact_analysis.axes import Axis, Configuration, axes_of
from onefold.impact_analysis.sample_validation import ROUNDING, FloatArray, checked_sample, is_constant
from onefold.impact_analysis.variance_decomposition import decompose_variance, leaves_of
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.space import Space

T = TypeVar("T")
MIN_CONFIGURATIONS = 10  # below which a forest mostly memorizes
NEGLIGIBLE = 0.01  # share below which nothing is claimed
PERMUTATIONS = 20  # all of which must predict worse than the values of a hyperparameter that has a share


@dataclass(frozen=True, slots=True)
class Share:
    """Share of the variance that a hyperparameter explains, or the interaction of two."""

    parameters: tuple[str, ...]
    share: float  # from 0 to 1, mean over the trees
    spread: float  # standard deviation over the trees


@dataclass(frozen=True, slots=True)
class Importance:
    """The shares of hyperparameters and of pairs, largest first; higher interactions take the rest to 1.

    `explained` is the out-of-bag coefficient of determination (R²) of the forest, at most 1: near 0 or below, the
    shares describe noise. None if nothing varies.
    """

    singles: tuple[Share, ...]
    pairs: tuple[Share, ...]
    explained: float | None
    n: int
    note: str = ""

    def of(self, *parameters: str) -> Share:
        """Return the share of one hyperparameter, or of two in any order."""
        for share in self.singles + self.pairs:
            if sorted(share.parameters) == sorted(parameters):
                return share
        known = ", ".join(share.parameters[0] for share in self.singles)
        raise InputError(f"expected one or two of the hyperparameters {known}, but got {parameters!r}")


def importance(
    configs: Sequence[Configuration],
    values: Sequence[float],
    space: Space | None = None,
    *,
    trees: int = 64,
    seed: int = 0,
    without_effect: Collection[str] = (),
) -> Importance:
    """Return the importance of hyperparameters for a property, given its value for each configuration.

    With a space, its hyperparameters are analyzed over their ranges; otherwise those in the configurations, over the
    observed values. If nothing varies, all shares are 0. A conditional hyperparameter has the share that its values
    explain: where it is inactive it gets random ones, which tell nothing of the hyperparameter it depends on.

    A hyperparameter has no share if it is known to be `without_effect`, if it is active in fewer than
    MIN_CONFIGURATIONS of the configurations and inactive in others, or if the forest predicts configurations that it
    has not seen as well with its values permuted.
    """
    numbers = checked_sample(values, "the values")
    if len(configs) != len(numbers):
        raise InputError(f"expected one value per configuration, but got {len(numbers)} for {len(configs)}")
    if trees < 1:
        raise InputError(f"trees must be at least 1, but got {trees}")
    axes = axes_of(configs, space)
    note = f"only {len(numbers)} configurations" if len(numbers) < MIN_CONFIGURATIONS else ""
    if is_constant(numbers) or not axes:
        note = "; ".join(filter(None, ["nothing varies", note]))
        return Importance(*_ranked(axes, np.zeros((1, _count(axes)))), None, len(numbers), note)
    points = _points(configs, axes, seed)
    analyzed = [axis.name not in without_effect and _is_active_often(configs, axis) for axis in axes]
    points[:, np.logical_not(analyzed)] = 0.0  # which no tree splits
    # Shares do not depend on the unit, but the rounding threshold does.
    forest = _fit(points, (numbers - numbers.mean()) / numbers.std(), trees, seed)
    shares = _shares(forest, axes)
    effects = _effects(range(len(axes)))
    used = {index for effect, share in zip(effects, shares.mean(axis=0)) if share >= NEGLIGIBLE for index in effect}
    noise = {index for index, known in enumerate(analyzed) if not known}  # else shares of rounding errors
    noise |= {index for index in sorted(used - noise) if _is_noise(forest, points, index, seed)}
    shares[:, [not noise.isdisjoint(effect) for effect in effects]] = 0.0
    return Importance(*_ranked(axes, shares), _out_of_bag_r2(forest, points), len(numbers), note)


def _is_active_often(configs: Sequence[Configuration], axis: Axis) -> bool:
    """Return whether a hyperparameter is active in all configurations, or in enough of them."""
    active = sum(axis.name in config for config in configs)
    return active == len(configs) or active >= MIN_CONFIGURATIONS


def _points(configs: Sequence[Configuration], axes: Sequence[Axis], seed: int) -> FloatArray:
    """Return the coordinates of each configuration, random ones on the axes of inactive hyperparameters."""
    rng = random.Random(seed)
    known = [[axis.coordinate(config) for axis in axes] for config in configs]
    return np.array([[axis.draw(rng) if x is None else x for axis, x in zip(axes, row)] for row in known])


@dataclass(frozen=True, slots=True)
class _Forest:
    trees: tuple[Any, ...]  # scikit-learn regression trees
    in_bag: tuple[Any, ...]  # indices of the configurations that each was fitted on
    values: FloatArray  # of all configurations, standardized


def _fit(points: FloatArray, values: FloatArray, trees: int, seed: int) -> _Forest:
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(n_estimators=trees, random_state=seed).fit(points, values)
    return _Forest(tuple(forest.estimators_), tuple(forest.estimators_samples_), values)


def _shares(forest: _Forest, axes: Sequence[Axis]) -> FloatArray:
    """Return one row per tree, with singles before pairs; constant trees are left out."""
    variances = [decompose_variance(leaves_of(tree.tree_), axes) for tree in forest.trees]
    rows = [np.concatenate([tree.singles, tree.pairs]) / tree.total for tree in variances if tree.total > ROUNDING]
    return np.array(rows or [np.zeros(_count(axes))])


def _out_of_bag_r2(forest: _Forest, points: FloatArray) -> float | None:
    """Return R² of the predictions by trees that were not fitted on the configuration; None if nothing varies."""
    predicted, (predictions,) = _out_of_bag_predictions(forest, points[None])
    actual = forest.values[predicted]
    if not predicted.any() or is_constant(actual):
        return None
    residual = float(((actual - predictions) ** 2).sum())
    return 1.0 - residual / float(((actual - actual.mean()) ** 2).sum())


def _is_noise(forest: _Forest, points: FloatArray, axis: int, seed: int) -> bool:
    """Return whether some permutation of a hyperparameter's values predicts unseen configurations as well."""
    rng = np.random.default_rng([seed, axis])
    for count in (PERMUTATIONS // 5, PERMUTATIONS - PERMUTATIONS // 5):  # a few reveal most noise
        versions = np.repeat(points[None], count + 1, axis=0)
        for version in versions[1:]:
            version[:, axis] = rng.permutation(version[:, axis])
        predicted, predictions = _out_of_bag_predictions(forest, versions)
        errors = ((predictions - forest.values[predicted]) ** 2).sum(axis=1)
        if predicted.any() and errors[1:].min() <= errors[0] * (1 + ROUNDING):
            return True
    return False


def _out_of_bag_predictions(forest: _Forest, points: FloatArray) -> tuple[NDArray[np.bool_], FloatArray]:
    """Return which configurations some tree was not fitted on, and their predictions by those trees.

    `points` has several versions of the configurations; one row of predictions is returned for each.
    """
    versions, count, axes = points.shape
    sums, votes = np.zeros((versions, count)), np.zeros(count)
    for tree, in_bag in zip(forest.trees, forest.in_bag):
        unseen = np.setdiff1d(np.arange(count), in_bag)
        if len(unseen):
            sums[:, unseen] += tree.predict(points[:, unseen].reshape(-1, axes)).reshape(versions, -1)
            votes[unseen] += 1
    predicted = votes > 0
    return predicted, sums[:, predicted] / votes[predicted]


def _effects(axes: Iterable[T]) -> list[tuple[T, ...]]:
    """Return the single hyperparameters and the pairs, in the order of the shares."""
    known = list(axes)
    return [effect for size in (1, 2) for effect in combinations(known, size)]


def _ranked(axes: Sequence[Axis], shares: FloatArray) -> tuple[tuple[Share, ...], tuple[Share, ...]]:
    statistics = zip(_effects(axes), shares.mean(axis=0), shares.std(axis=0))
    ranked = [Share(tuple(axis.name for axis in effect), float(mean), float(std)) for effect, mean, std in statistics]
    singles, pairs = ranked[: len(axes)], ranked[len(axes) :]
    return _largest_first(singles), _largest_first(pairs)


def _largest_first(shares: Sequence[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: -share.share))


def _count(axes: Sequence[Axis]) -> int:
    return len(axes) * (len(axes) + 1) // 2
