"""When a survey has done enough: the rate rule by hand, and what can be used up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.kernels.stopping_rule import change, no_longer_pays, rates, used_up
from onefold.vocabulary.kernels import CompileBudget, CompileCost, TuningRound

rate = st.floats(-1e3, 1e3).filter(lambda value: abs(value) > 1e-3)
gains = st.floats(1e-6, 1.0)


def rounds_of(latencies: Sequence[float], seconds: float = 10.0) -> list[TuningRound]:
    """Rounds that took so long each."""
    return [
        TuningRound(number, "model", latency, seconds * number, (), CompileCost())
        for number, latency in enumerate(latencies)
    ]


def after(gains: Sequence[float], start: float = 10.0) -> list[TuningRound]:
    """Rounds that gained so much each."""
    return rounds_of([start - sum(gains[:place]) for place in range(len(gains) + 1)])


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (-1.0, -1.0, 0.0),  # as much as before
        (-1.0, -0.75, -0.25),  # a quarter less
        (-1.0, -0.5, -0.5),
        (-1.0, -2.0, 1.0),  # twice as much
        (-1.0, 0.0, -1.0),  # nothing any more
        (-1.0, 1.0, -2.0),  # slower after faster
        (1.0, 2.0, -1.0),  # slower twice, and more so
        (1.0, 0.5, 0.5),  # slower twice, but less so
        (1.0, -1.0, 2.0),  # faster after slower
        (0.0, -1.0, 1.0),  # faster after nothing
        (0.0, 0.0, -1.0),  # still nothing
        (0.0, 1.0, -1.0),
    ],
)
def test_the_change_of_a_rate_by_hand(before: float, now: float, expected: float) -> None:
    assert change(before, now) == pytest.approx(expected)


@given(before=rate, now=rate, factor=st.floats(1e-3, 1e3))
def test_it_is_a_share_so_the_unit_does_not_matter(before: float, now: float, factor: float) -> None:
    assert change(factor * before, factor * now) == pytest.approx(change(before, now))


@given(before=gains, now=gains)
def test_while_there_is_gain_it_is_by_what_share_that_has_changed(before: float, now: float) -> None:
    assert change(-before, -now) == pytest.approx(now / before - 1)


@given(before=rate, better=rate, worse=rate)
def test_a_round_that_gains_more_is_never_judged_worse(before: float, better: float, worse: float) -> None:
    better, worse = sorted((better, worse))
    assert change(before, better) >= change(before, worse)


def test_a_rate_is_seconds_of_latency_over_seconds_of_tuning() -> None:
    assert rates(rounds_of([4.0, 3.0, 3.5], seconds=10.0)) == pytest.approx([-0.1, 0.05])
    assert rates(rounds_of([4.0])) == rates([]) == []


def test_rounds_that_take_no_time_are_no_error() -> None:
    assert rates(rounds_of([4.0, 3.0], seconds=0.0))[0] < 0


@pytest.mark.parametrize(
    ("gained", "is_over"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 0.5], False),  # one change says nothing yet
        ([1.0, 0.5, 0.25], True),
        ([1.0, 0.8, 0.6], False),  # falls, but by less than a quarter
        ([1.0, 0.5, 0.5], False),
        ([1.0, 0.5, 0.6, 0.2], False),  # not in a row
        ([0.5, 1.0, 0.5, 0.25], True),  # the last two
        ([1.0, 0.0, -0.1], True),  # nothing, and then less than nothing
        ([1.0, 0.0, 0.0], True),
        ([1.0, 0.0, 0.1], False),
        ([1.0, -0.1, -0.2], True),  # slower, and then more so
        ([1.0, -0.2, 0.5], False),  # faster again
    ],
)
def test_two_rounds_in_a_row_that_gain_a_quarter_less_are_enough(gained: list[float], is_over: bool) -> None:
    assert no_longer_pays(after(gained), -0.25) is is_over


def test_what_a_gain_may_fall_by_can_be_chosen() -> None:
    halved = after([1.0, 0.5, 0.25])
    assert no_longer_pays(halved, -0.4)
    assert not no_longer_pays(halved, -0.6)
    assert no_longer_pays(after([1.0, 0.5]), -0.4, in_a_row=1)


@given(gained=st.lists(gains, max_size=8), falls=st.floats(-1.0, -0.01))
def test_a_model_that_gains_more_and_more_is_never_stopped(gained: list[float], falls: float) -> None:
    assert not no_longer_pays(after(sorted(gained)), falls)


SPENT = CompileCost({"build": 5.0}, {"build": 1.8e6, "run": 1.8e6}, "rapl")


@pytest.mark.parametrize(
    ("effort", "said"),
    [
        (CompileBudget(), ""),
        (CompileBudget(minutes=1.1, candidates=13, joules=3.7e6), ""),
        (CompileBudget(minutes=1.0), "the time is used up (60 s)"),
        (CompileBudget(candidates=12), "12 candidates were measured"),
        (CompileBudget(joules=3.6e6), "the energy is used up (3,600,000 J, rapl)"),
        (CompileBudget(money=0.30, price_per_kwh=0.30), "the money is used up (0.3 for 3,600,000 J, rapl)"),
        (CompileBudget(money=0.31, price_per_kwh=0.30), ""),
        (CompileBudget(minutes=0.5, candidates=1), "the time is used up (60 s)"),
    ],
)
def test_what_is_used_up_is_said(effort: CompileBudget, said: str) -> None:
    assert used_up(effort, SPENT, 60.0, 12) == said


def test_energy_that_nobody_can_tell_is_never_used_up() -> None:
    assert used_up(CompileBudget(joules=1.0, money=0.01, price_per_kwh=10.0), CompileCost({"run": 1e6}), 1.0, 1) == ""
