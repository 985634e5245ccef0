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
def test_coordinate_search_proposes_each_option_once_and_the_defaults_at_the_end(knobs: Options) -> None:
    _, proposed = search("few", knobs, lambda _: 1.0)
    assert len(proposed) == 1 + sum(len(options) - 1 for options in knobs.values())
    best, proposed = search("few", knobs, lambda setting: 2.0 - sum(map(int, setting.values())) / 10)  # type: ignore[arg-type]
    defaults = {name: options[0] for name, options in knobs.items()}
    assert proposed[-2:] == [best, defaults]


def test_the_best_setting_is_measured_next_to_the_defaults() -> None:
    costs = {2: 1.0, 1: 0.5, 4: 0.9}
    best, proposed = search("few", {"threads": (2, 1, 4)}, lambda setting: costs[int(setting["threads"] or 0)])
    assert best == {"threads": 1}
    assert [setting["threads"] for setting in proposed] == [2, 1, 4, 1, 2]


def test_a_gain_that_is_not_confirmed_is_rejected() -> None:
    costs = iter([1.0, 0.95, 0.96])  # disturbed defaults, a candidate, the defaults again
    best, _ = search("few", {"threads": (2, 1)}, lambda _: next(costs))
    assert best == {"threads": 2}


@pytest.mark.parametrize("strategy", ["grid", "halving"])
def test_every_combination_is_measured(strategy: str) -> None:
    _, proposed = search(strategy, {"a": (1, 2), "b": (1, 2, 3)}, lambda _: 1.0)
    assert len({tuple(setting.items()) for setting in proposed}) == 6
