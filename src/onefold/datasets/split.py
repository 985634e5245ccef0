"""How a part of a data set is held back: the same part on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
SEED = 1


def held_back(labels: NDArray[Any], count: int) -> tuple[Indices, Indices]:
    """The positions that stay and the `count` that are held back, both in order, with the same mix of labels."""
    # RandomState, because its numbers are promised to stay the same in every version of numpy.
    order = np.random.RandomState(SEED).permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    by_place = np.argsort(place, kind="stable")
    return np.sort(by_place[count:]), np.sort(by_place[:count])


def held_back_groups(groups: NDArray[Any], count: int) -> tuple[Indices, Indices]:
    """As `held_back`, but whole groups go together, until at least `count` samples are held back."""
    names = np.unique(groups)
    shuffled = names[np.random.RandomState(SEED).permutation(len(names))]
    sizes = np.array([np.count_nonzero(groups == name) for name in shuffled])
    chosen = shuffled[: np.searchsorted(np.cumsum(sizes), count) + 1]
    back = np.isin(groups, chosen)
    return np.flatnonzero(~back), np.flatnonzero(back)
