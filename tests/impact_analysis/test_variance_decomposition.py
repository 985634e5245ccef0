"""Variance decomposition of trees: by hand, and against predictions on a full grid."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from onefold.impact_analysis.axes import Axis, Categories, Range
from onefold.impact_analysis.variance_decomposition import Leaves, Variances, decompose_variance, leaves_of

STEPS = 16  # of a range: values are sixteenths, so that cuts are thirty-seconds and a grid of 32 meets none


def four_leaves(values: list[float]) -> Leaves:
    """Return the leaves of a tree over two axes, both split at 0.5."""
    low, high = [-np.inf, 0.5], [0.5, np.inf]
    corners = list(product((0, 1), repeat=2))
    return Leaves(
        np.array(values),
        np.array([[low[a], low[b]] for a, b in corners]),
        np.array([[high[a], high[b]] for a, b in corners]),
    )


def two_switches() -> tuple[Axis, Axis]:
    return Categories("a", (0, 1)), Categories("b", (0, 1))


def test_additive_effects_have_no_interaction() -> None:
    # a + 2 b: the variances of 0 or 1, and of 0 or 2, each as likely, are 0.25 and 1.
    result = decompose_variance(four_leaves([0, 2, 1, 3]), two_switches())
    assert result.total == pytest.approx(1.25)
    assert result.singles == pytest.approx([0.25, 1.0])
    assert result.pairs == pytest.approx([0.0])


def test_a_pure_interaction_has_no_main_effects() -> None:
    # Either but not both: 0 or 1, whatever the one, on average 0.5.
    result = decompose_variance(four_leaves([0, 1, 1, 0]), two_switches())
    assert result.total == pytest.approx(0.25)
    assert result.singles == pytest.approx([0.0, 0.0])
    assert result.pairs == pytest.approx([0.25])


def test_a_range_is_weighted_by_its_length() -> None:
    # 0 on a quarter and 4 on the rest: the mean is 3, the variance 0.25 * 9 + 0.75 * 1 = 3.
    leaves = Leaves(np.array([0.0, 4.0]), np.array([[-np.inf], [0.25]]), np.array([[0.25], [np.inf]]))
    result = decompose_variance(leaves, (Range("x", 0.0, 1.0),))
    assert (result.total, result.singles.tolist()) == (pytest.approx(3.0), pytest.approx([3.0]))
    assert len(result.pairs) == 0


def test_a_single_leaf_has_no_variance() -> None:
    leaves = Leaves(np.array([7.0]), np.full((1, 2), -np.inf), np.full((1, 2), np.inf))
    result = decompose_variance(leaves, two_switches())
    assert (result.total, result.singles.tolist(), result.pairs.tolist()) == (0.0, [0.0, 0.0], [0.0])


AXES: tuple[Axis, ...] = (
    Categories("act", ("relu", "tanh", "gelu")),
    Categories("norm", ("batch", "layer", "none")),
    Range("lr", 0.0, 1.0),
    Range("momentum", 0.0, 1.0),
)
EVEN = (np.arange(2 * STEPS) + 0.5) / (2 * STEPS)
GRID = (
    (np.arange(3.0), np.full(3, 1 / 3)),
    (np.arange(3.0), np.full(3, 1 / 3)),
    (EVEN, np.full(len(EVEN), 1 / len(EVEN))),
    (EVEN, np.full(len(EVEN), 1 / len(EVEN))),
)


def by_brute_force(tree: DecisionTreeRegressor, places: tuple[int, ...]) -> Variances:
    """Return the same from the tree's predictions on a grid."""
    points, shares = zip(*(GRID[axis] for axis in places))
    mesh = np.stack(np.meshgrid(*points, indexing="ij"), axis=-1)
    predicted = tree.predict(mesh.reshape(-1, len(places))).reshape(mesh.shape[:-1])

    def variance(kept: tuple[int, ...]) -> float:
        average = predicted
        for axis in reversed(range(len(places))):  # the last one first, so that the others keep their number
            if axis not in kept:
                average = np.tensordot(average, shares[axis], axes=([axis], [0]))
        weights = np.ones(())
        for axis in kept:
            weights = np.multiply.outer(weights, shares[axis])
        return float((weights * average**2).sum() - (weights * average).sum() ** 2)

    singles = [variance((axis,)) for axis in range(len(places))]
    pairs = [variance((a, b)) - singles[a] - singles[b] for a, b in combinations(range(len(places)), 2)]
    return Variances(variance(tuple(range(len(places)))), np.array(singles), np.array(pairs))


def drawn(rng: np.random.Generator, n: int) -> np.ndarray:
    sixteenths = rng.integers(0, STEPS + 1, size=(n, 2)) / STEPS
    return np.stack([rng.integers(0, 3, n), rng.integers(0, 3, n), *sixteenths.T], axis=1)


@settings(max_examples=15, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([(0, 1), (2, 3), (0, 2), (0, 1, 2), (1, 2, 3)]), st.integers(3, 40))
def test_the_decomposition_matches_a_full_grid(seed: int, places: tuple[int, ...], n: int) -> None:
    rng = np.random.default_rng(seed)
    points = drawn(rng, n)[:, places]
    tree = DecisionTreeRegressor(random_state=0).fit(points, rng.normal(size=n))
    result = decompose_variance(leaves_of(tree.tree_), [AXES[axis] for axis in places])
    expected = by_brute_force(tree, places)
    assert result.total == pytest.approx(expected.total)
    assert result.singles == pytest.approx(expected.singles, abs=1e-9)
    assert result.pairs == pytest.approx(expected.pairs, abs=1e-9)


@settings(max_examples=15, derandomize=True)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_components_do_not_exceed_the_total(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    tree = DecisionTreeRegressor(random_state=0).fit(drawn(rng, n), rng.normal(size=n))
    result = decompose_variance(leaves_of(tree.tree_), AXES)
    assert (result.singles >= 0).all()
    assert (result.pairs >= 0).all()
    assert result.singles.sum() + result.pairs.sum() <= result.total + 1e-9


def test_leaves_reproduce_the_predictions_of_the_tree() -> None:
    rng = np.random.default_rng(0)
    points = drawn(rng, 60)
    tree = DecisionTreeRegressor(max_depth=5, random_state=0).fit(points, rng.normal(size=60))
    leaves = leaves_of(tree.tree_)
    inside = ((leaves.lows < points[:, None]) & (points[:, None] <= leaves.highs)).all(axis=2)
    assert (inside.sum(axis=1) == 1).all()
    assert (inside @ leaves.values).tolist() == pytest.approx(tree.predict(points).tolist())
