"""The serving space of a device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.serving.space import BATCH_SIZES, GRAPH_LEVELS, ServingSpace
from onefold.vocabulary.errors import InputError

rising = st.sets(st.integers(1, 100), min_size=1, max_size=5).map(lambda numbers: tuple(sorted(numbers)))
some_levels = st.sampled_from([GRAPH_LEVELS[a:b] for a in range(4) for b in range(a + 1, 5)])
spaces = st.builds(
    ServingSpace, rising, rising, some_levels, st.sampled_from([("sequential",), ("sequential", "parallel")])
)


@given(spaces)
def test_points_are_the_product(space: ServingSpace) -> None:
    points = space.points()
    assert len(points) == len(set(points)) == len(space)
    assert {point.batch_size for point in points} == set(space.batch_sizes)
    assert {point.threads for point in points} == set(space.threads)
    assert {point.graph_level for point in points} == set(space.graph_levels)
    assert {point.execution for point in points} == set(space.executions)


@given(st.integers(1, 200))
def test_threads_are_powers_of_two_and_all_cores(cores: int) -> None:
    threads = ServingSpace().on(cores).threads
    assert threads[0] == 1
    assert threads[-1] == cores
    assert all(b == 2 * a for a, b in pairwise(threads[:-1]))
    assert list(threads) == sorted(set(threads))
    assert len(threads) < 2 or threads[-1] <= 2 * threads[-2]


def test_space_of_two_cores_has_128_points() -> None:
    assert len(ServingSpace().on(2)) == 128
    assert (BATCH_SIZES[0], BATCH_SIZES[-1]) == (1, 100)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"graph_levels": ("al",)}, "unknown graph_levels 'al'; did you mean 'all'"),
        ({"executions": ("parallell",)}, "did you mean 'parallel'"),
        ({"precisions": ("int8",)}, "unknown precisions 'int8'; known: fp32"),
        ({"batch_sizes": ()}, "batch_sizes must be integers from 1"),
        ({"batch_sizes": (0, 1)}, "got"),
        ({"threads": (2, 1)}, "in increasing order"),
        ({"threads": (1, 1)}, "in increasing order"),
    ],
)
def test_invalid_space_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ServingSpace(**wrong)
