"""Functional ANOVA of a regression tree: its variance over a space, decomposed into main effects and interactions.

A tree is constant on boxes. Marginal averages are therefore sums over leaves, weighted by the volumes of their boxes,
and the decomposition is exact, without sampling (Hutter, Hoos and Leyton-Brown 2014). No kept dependency has fANOVA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from onefold.impact_analysis.axes import Axis
from onefold.impact_analysis.sample_validation import FloatArray


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves of a tree: each predicts one value where `low < x <= high` on every axis."""

    values: FloatArray  # one per leaf
    lows: FloatArray  # leaves × axes
    highs: FloatArray


@dataclass(frozen=True, slots=True)
class Variances:
    """The variance of a tree: in total, of the main effect of each axis, and of the interaction of each pair."""

    total: float
    singles: FloatArray
    pairs: FloatArray  # in the order (1, 2), (1, 3), …


def leaves_of(tree: Any) -> Leaves:
    """Return the leaves of a fitted scikit-learn tree (its `tree_`)."""
    lows = np.full((tree.node_count, tree.n_features), -np.inf)
    highs = np.full((tree.node_count, tree.n_features), np.inf)
    branches = np.flatnonzero(tree.children_left >= 0)
    for node in branches:  # parents precede their children
        left, right, axis = tree.children_left[node], tree.children_right[node], tree.feature[node]
        lows[[left, right]], highs[[left, right]] = lows[node], highs[node]
        highs[left, axis] = lows[right, axis] = tree.threshold[node]
    leaf = tree.children_left < 0
    return Leaves(np.asarray(tree.value[leaf, 0, 0], dtype=np.float64), lows[leaf], highs[leaf])


def decompose_variance(leaves: Leaves, axes: Sequence[Axis]) -> Variances:
    """Decompose the variance of a tree under the probability mass of the axes' cells."""
    covers, shares = zip(*(_coverage(leaves, index, axis) for index, axis in enumerate(axes)))
    widths = np.stack([cover @ share for cover, share in zip(covers, shares)])  # axes × leaves
    volumes = widths.prod(axis=0)
    deviations = leaves.values - leaves.values @ volumes
    centered = deviations * volumes
    # Marginalize over all other axes: a leaf counts in proportion to its volume along those.
    weighted = [_normalized(cover, width) for cover, width in zip(covers, widths)]
    marginals = [centered @ weight for weight in weighted]
    singles = np.array([share @ marginal**2 for share, marginal in zip(shares, marginals)])
    pairs = []
    for first, second in combinations(range(len(axes)), 2):
        marginal = (weighted[first] * centered[:, None]).T @ weighted[second]
        # The interaction averages to 0 along both axes, so that its mean square is its variance.
        interaction = marginal - marginals[first][:, None] - marginals[second]
        pairs.append(float(shares[first] @ interaction**2 @ shares[second]))
    return Variances(float(centered @ deviations), singles, np.array(pairs))


def _coverage(leaves: Leaves, index: int, axis: Axis) -> tuple[FloatArray, FloatArray]:
    """Return which cells of an axis each leaf covers (leaves × cells, 1 or 0), and the shares of the cells."""
    low, high = leaves.lows[:, index, None], leaves.highs[:, index, None]
    points, shares = axis.cells(np.concatenate([low[:, 0], high[:, 0]]))
    return ((low < points) & (points <= high)).astype(np.float64), shares


def _normalized(cover: FloatArray, width: FloatArray) -> FloatArray:
    # A leaf without width has no volume and contributes nothing.
    return np.divide(cover, width[:, None], out=np.zeros_like(cover), where=width[:, None] > 0)
