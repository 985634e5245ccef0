from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.training.probing import PROBINGS, Options, Setting

KNOBS = st.dictionaries(
    st.sampled_from(("threads", "format", "update", "allocator")),
    st.integers(2, 3).map(lambda options: tuple(range(options))),
    min_size=1,
    max_size=3,
)


def probed(probing: str, knobs: Options, cost) -> tuple[Setting, list[Setting]]:
    proposals, asked = PROBINGS[probing](knobs), []
    try:
        setting = next(proposals)
        while True:
            asked.append(setting)
            setting = proposals.send(cost(setting))
    except StopIteration as end:
        return end.value, asked


def costs(knobs: Options, factors: dict) -> callable:
    """What a step costs when every knob does its part, whatever the others do."""

    def cost(setting: Setting) -> float:
        product_of_factors = 1.0
        for name, value in setting.items():
            product_of_factors *= factors[name][knobs[name].index(value)]
        return product_of_factors

    return cost


@pytest.mark.parametrize("probing", PROBINGS)
@given(knobs=KNOBS, data=st.data())
def test_the_best_setting_is_found_when_knobs_do_not_depend_on_each_other(probing, knobs, data):
    factors = {name: data.draw(st.permutations([1.0, 0.5, 0.25][: len(options)])) for name, options in knobs.items()}
    cost = costs(knobs, factors)
    best, _ = probed(probing, knobs, cost)
    assert cost(best) == min(cost(dict(zip(knobs, values))) for values in product(*knobs.values()))


@given(knobs=KNOBS)
def test_few_asks_for_each_option_once_and_for_what_was_found_at_the_end(knobs):
    _, asked = probed("few", knobs, lambda setting: 1.0)
    assert len(asked) == 1 + sum(len(options) - 1 for options in knobs.values())
    best, asked = probed("few", knobs, lambda setting: 2.0 - sum(setting.values()) / 10)
    found = {name: options[0] for name, options in knobs.items()}
    assert asked[-2:] == [best, found]


def test_the_best_is_seen_right_beside_what_was_found():
    costs = {2: 1.0, 1: 0.5, 4: 0.9}
    best, asked = probed("few", {"threads": (2, 1, 4)}, lambda setting: costs[setting["threads"]])
    assert best == {"threads": 1}
    assert [setting["threads"] for setting in asked] == [2, 1, 4, 1, 2]


def test_a_gain_that_does_not_come_again_is_not_kept():
    told = iter([1.0, 0.95, 0.96])  # found at a bad moment, a candidate, found again
    best, _ = probed("few", {"threads": (2, 1)}, lambda setting: next(told))
    assert best == {"threads": 2}


@pytest.mark.parametrize("probing", ["grid", "halving"])
def test_every_combination_is_tried(probing):
    knobs = {"a": (1, 2), "b": (1, 2, 3)}
    _, asked = probed(probing, knobs, lambda setting: 1.0)
    assert len({tuple(setting.items()) for setting in asked}) == 6
