"""Splits are exact, disjoint, stratified and reproducible."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onefold.datasets.split import grouped_split, stratified_split

labels = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(np.array)


@given(labels, st.floats(0, 1))
def test_stratified_split_is_exact_and_complete(labels: np.ndarray, share: float) -> None:
    count = int(share * len(labels))
    rest, held_out = stratified_split(labels, count)
    assert len(held_out) == count
    assert sorted([*rest, *held_out]) == list(range(len(labels)))
    assert sorted(rest) == list(rest)
    assert sorted(held_out) == list(held_out)


@given(labels, st.floats(0, 1))
def test_stratified_split_keeps_label_proportions(labels: np.ndarray, share: float) -> None:
    count = int(share * len(labels))
    _, held_out = stratified_split(labels, count)
    for label in np.unique(labels):
        fair = np.count_nonzero(labels == label) * count / len(labels)
        assert abs(np.count_nonzero(labels[held_out] == label) - fair) <= 2


@given(labels, st.floats(0, 1))
def test_grouped_split_keeps_groups_together(groups: np.ndarray, share: float) -> None:
    count = int(share * (len(groups) - 1))
    rest, held_out = grouped_split(groups, count)
    assert sorted([*rest, *held_out]) == list(range(len(groups)))
    assert not set(groups[rest]) & set(groups[held_out])
    assert len(held_out) >= count


def test_splits_are_reproducible() -> None:
    assert stratified_split(np.arange(40) % 4, 8)[1].tolist() == [2, 3, 21, 22, 29, 31, 32, 36]
    assert grouped_split(np.arange(40) // 4, 8)[1].tolist() == [8, 9, 10, 11, 36, 37, 38, 39]
