"""Deterministic splits of a dataset, identical on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
SEED = 1


def stratified_split(labels: NDArray[Any], count: int) -> tuple[Indices, Indices]:
    """Split sample indices into the rest and `count` held-out ones, both sorted, with equal label proportions."""
    # RandomState: numpy guarantees its stream across versions.
    order = np.random.RandomState(SEED).permutation(len(labels))
    quantile = np.empty(len(labels))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        quantile[members] = (np.arange(len(members)) + 0.5) / len(members)
    by_quantile = np.argsort(quantile, kind="stable")
    return np.sort(by_quantile[count:]), np.sort(by_quantile[:count])


def grouped_split(groups: NDArray[Any], count: int) -> tuple[Indices, Indices]:
    """Split sample indices into the rest and at least `count` held-out ones, without dividing a group."""
    names = np.unique(groups)
    shuffled = names[np.random.RandomState(SEED).permutation(len(names))]
    sizes = np.array([np.count_nonzero(groups == name) for name in shuffled])
    held_out_groups = shuffled[: np.searchsorted(np.cumsum(sizes), count) + 1]
    is_held_out = np.isin(groups, held_out_groups)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
