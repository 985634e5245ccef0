"""The part that is held back: exact, disjoint, of the same mix, and the same for ever."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onefold.datasets.split import held_back, held_back_groups

labels = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(np.array)


@given(labels, st.floats(0, 1))
def test_exactly_as_many_as_asked_for_and_nothing_lost(labels: np.ndarray, share: float) -> None:
    count = int(share * len(labels))
    stay, back = held_back(labels, count)
    assert len(back) == count
    assert sorted([*stay, *back]) == list(range(len(labels)))
    assert sorted(stay) == list(stay)
    assert sorted(back) == list(back)


@given(labels, st.floats(0, 1))
def test_each_label_gives_its_share(labels: np.ndarray, share: float) -> None:
    count = int(share * len(labels))
    _, back = held_back(labels, count)
    for label in np.unique(labels):
        fair = np.count_nonzero(labels == label) * count / len(labels)
        assert abs(np.count_nonzero(labels[back] == label) - fair) <= 2


@given(labels, st.floats(0, 1))
def test_groups_stay_together(groups: np.ndarray, share: float) -> None:
    count = int(share * (len(groups) - 1))
    stay, back = held_back_groups(groups, count)
    assert sorted([*stay, *back]) == list(range(len(groups)))
    assert not set(groups[stay]) & set(groups[back])
    assert len(back) >= count


def test_the_parts_are_the_same_on_every_machine() -> None:
    assert held_back(np.arange(40) % 4, 8)[1].tolist() == [2, 3, 21, 22, 29, 31, 32, 36]
    assert held_back_groups(np.arange(40) // 4, 8)[1].tolist() == [8, 9, 10, 11, 36, 37, 38, 39]
