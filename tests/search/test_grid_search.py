from __future__ import annotations

import pytest
from hypothesis import given, settings

from onefold.search.grid_search import GridSearcher
from onefold.search.searcher import SpaceExhausted
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.space import Choice, Float, Int, Space
from random_spaces import spaces

SMALL = Space(a=Choice("x", "y"), b=Int(1, 3), c=Float(0.0, 1.0, when={"a": "x"}))


def walk(searcher: GridSearcher, most: int = 10_000) -> list:
    seen = []
    try:
        while len(seen) < most:
            seen.append(searcher.ask(len(seen)))
    except SpaceExhausted:
        pass
    return seen


@settings(max_examples=20, deadline=None)
@given(spaces(max_parameters=4))
def test_in_order_it_is_the_grid_of_the_space(space):
    assert walk(GridSearcher(space, points=3, shuffle=False)) == list(space.grid(3))


@settings(max_examples=20, deadline=None)
@given(spaces(max_parameters=4))
def test_shuffled_it_visits_the_same_configurations_once(space):
    seen = walk(GridSearcher(space, seed=4, points=3))
    assert len(seen) == len(set(seen))
    assert set(seen) == set(space.grid(3))


def test_the_shuffle_depends_on_the_seed():
    first, same, second = (walk(GridSearcher(SMALL, seed)) for seed in (1, 1, 2))
    assert first == same
    assert first != second


def test_an_exhausted_grid_stays_exhausted():
    searcher = GridSearcher(SMALL, points=3)
    assert len(walk(searcher)) == 3 * 3 + 3
    for _ in range(2):
        with pytest.raises(SpaceExhausted):
            searcher.ask(99)


def test_a_cycle_starts_again_from_the_beginning():
    seen = walk(GridSearcher(SMALL, points=3, cycle=True), most=36)
    assert seen[:12] == seen[12:24] == seen[24:]


def test_a_grid_too_large_for_memory_can_be_walked():
    space = Space(**{f"x{i}": Float(0.0, 1.0) for i in range(30)})
    seen = walk(GridSearcher(space, points=10), most=50)
    assert len(set(seen)) == 50
    assert {config.x0 for config in seen} == {config.x29 for config in seen} == set(space.parameters["x0"].grid(10))


def test_points_must_be_positive():
    with pytest.raises(SpaceError, match="1 point or more"):
        GridSearcher(SMALL, points=0)
