"""The variance of a regression tree over a space, split into what each axis and each two of them make of it.

A tree is constant on boxes. Averages over everything but one or two axes are therefore sums over its leaves, each with
the volume of its box, and the split is exact (Hutter, Hoos and Leyton-Brown 2014): no sampling, no grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from onefold.impact_analysis.axes import Axis
from onefold.impact_analysis.sample_validation import Numbers


@dataclass(frozen=True, slots=True)
class Leaves:
    """What a tree predicts, and where: a leaf holds for `low < x <= high` on each axis."""

    values: Numbers  # of each leaf
    lows: Numbers  # leaves × axes
    highs: Numbers


@dataclass(frozen=True, slots=True)
class Variances:
    """Of a tree: in all, of its average along each axis, and of each two axes beyond what either does alone."""

    total: float
    singles: Numbers
    pairs: Numbers  # first axis with second, first with third, …


def leaves_of(tree: Any) -> Leaves:
    """The leaves of a fitted tree of scikit-learn (its `tree_`)."""
    lows = np.full((tree.node_count, tree.n_features), -np.inf)
    highs = np.full((tree.node_count, tree.n_features), np.inf)
    branches = np.flatnonzero(tree.children_left >= 0)
    for node in branches:  # a parent's number is below its children's
        left, right, axis = tree.children_left[node], tree.children_right[node], tree.feature[node]
        lows[[left, right]], highs[[left, right]] = lows[node], highs[node]
        highs[left, axis] = lows[right, axis] = tree.threshold[node]
    leaf = tree.children_left < 0
    return Leaves(np.asarray(tree.value[leaf, 0, 0], dtype=np.float64), lows[leaf], highs[leaf])


def decomposed(leaves: Leaves, axes: Sequence[Axis]) -> Variances:
    """The variances of a tree under the shares that the axes give to their cells."""
    covers, shares = zip(*(_covered(leaves, place, axis) for place, axis in enumerate(axes)))
    widths = np.stack([cover @ share for cover, share in zip(covers, shares)])  # axes × leaves
    volumes = widths.prod(axis=0)
    deviations = leaves.values - leaves.values @ volumes
    centred = deviations * volumes
    # Averaging over all other axes: a leaf counts as much as it covers of those.
    weighed = [_shared(cover, width) for cover, width in zip(covers, widths)]
    averages = [centred @ each for each in weighed]
    singles = np.array([share @ average**2 for share, average in zip(shares, averages)])
    pairs = []
    for one, other in combinations(range(len(axes)), 2):
        average = (weighed[one] * centred[:, None]).T @ weighed[other]
        # What neither does alone averages to 0 along both, so that its square is its variance.
        beyond = average - averages[one][:, None] - averages[other]
        pairs.append(float(shares[one] @ beyond**2 @ shares[other]))
    return Variances(float(centred @ deviations), singles, np.array(pairs))


def _covered(leaves: Leaves, place: int, axis: Axis) -> tuple[Numbers, Numbers]:
    """Which cells of an axis each leaf covers (leaves × cells, 1 or 0), and the shares of the cells."""
    low, high = leaves.lows[:, place, None], leaves.highs[:, place, None]
    points, shares = axis.cells(np.concatenate([low[:, 0], high[:, 0]]))
    return ((low < points) & (points <= high)).astype(np.float64), shares


def _shared(cover: Numbers, width: Numbers) -> Numbers:
    # A leaf of no width has no volume either, and counts nowhere.
    return np.divide(cover, width[:, None], out=np.zeros_like(cover), where=width[:, None] > 0)
