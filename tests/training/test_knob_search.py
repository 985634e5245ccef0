"""Search strategies for knobs find the best setting with the expected number of windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.training.knob_search import STRATEGIES, Options, Setting

KNOBS = st.dictionaries(
    st.sampled_from(("threads", "format", "update", "allocator")),
    st.integers(2, 3).map(lambda options: tuple(range(options))),
    min_size=1,
    max_size=3,
)


def search(strategy: str, knobs: Options, cost: Callable[[Setting], float]) -> tuple[Setting, list[Setting]]:
    """Return the best setting and all proposals."""
    proposals, proposed = STRATEGIES[strategy](knobs), []
    try:
        setting = next(proposals)
        while True:
            proposed.append(setting)
            setting = proposals.send(cost(setting))
    except StopIteration as end:
        return end.value, proposed


def independent_cost(knobs: Options, factors: Mapping[str, list[float]]) -> Callable[[Setting], float]:
    """Return a cost to which every knob contributes a factor."""
    return lambda setting: prod(factors[name][knobs[name].index(value)] for name, value in setting.items())


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(knobs=KNOBS, data=st.data())
def test_the_best_setting_of_independent_knobs_is_found(strategy: str, knobs: Options, data: st.DataObject) -> None:
    factors = {name: data.draw(st.permutations([1.0, 0.5, 0.25][: len(options)])) for name, options in knobs.items()}
    cost = independent_cost(knobs, factors)
    best, _ = search(strategy, knobs, cost)
    assert cost(best) == min(cost(dict(zip(knobs, values))) for values in product(*knobs.values()))


@given(knobs=KNOBS)
def test_coordinate_search_proposes_each_option_once(knobs: Options) -> None:
    _, proposed = search("few", knobs, lambda _: 1.0)
    assert len(proposed) == 1 + sum(len(options) - 1 for options in knobs.values())


@pytest.mark.parametrize("strategy", ["grid", "halving"])
def test_every_combination_is_measured(strategy: str) -> None:
    _, proposed = search(strategy, {"a": (1, 2), "b": (1, 2, 3)}, lambda _: 1.0)
    assert len({tuple(setting.items()) for setting in proposed}) == 6
