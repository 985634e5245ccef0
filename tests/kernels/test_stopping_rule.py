"""Stopping rules: the rate rule and the limits of a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.kernels.stopping_rule import (
    affordable_candidates,
    exhausted_limit,
    has_diminishing_gain,
    latency_rates,
    relative_change,
    share_of_rest,
)
from onefold.vocabulary.kernels import CompileBudget, CompileCost, TuningRound

rate = st.floats(-1e3, 1e3).filter(lambda value: abs(value) > 1e-3)
gains = st.floats(1e-6, 1.0)


def rounds_of(latencies: Sequence[float], seconds: float = 10.0) -> list[TuningRound]:
    """Return rounds of `seconds` each."""
    return [
        TuningRound(number, "model", latency, seconds * number, (), CompileCost())
        for number, latency in enumerate(latencies)
    ]


def after(gains: Sequence[float], start: float = 10.0) -> list[TuningRound]:
    """Return rounds that gained this much each."""
    return rounds_of([start - sum(gains[:index]) for index in range(len(gains) + 1)])


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
        (1.0, 1.0, -1.0),  # … and equally so
        (1.0, 0.5, 0.5),  # slower twice, but less so
        (1.0, -1.0, 2.0),  # faster after slower
        (0.0, -1.0, 1.0),  # faster after nothing
        (0.0, 0.0, -1.0),  # still nothing
        (0.0, 1.0, -1.0),
    ],
)
def test_the_relative_change_of_a_rate(before: float, now: float, expected: float) -> None:
    assert relative_change(before, now) == pytest.approx(expected)


@given(before=rate, now=rate, factor=st.floats(1e-3, 1e3))
def test_the_change_is_independent_of_the_unit(before: float, now: float, factor: float) -> None:
    assert relative_change(factor * before, factor * now) == pytest.approx(relative_change(before, now))


@given(before=gains, now=gains)
def test_the_change_of_a_gain_is_relative(before: float, now: float) -> None:
    assert relative_change(-before, -now) == pytest.approx(now / before - 1)


@given(before=rate, better=rate, worse=rate)
def test_a_larger_gain_never_counts_as_a_larger_drop(before: float, better: float, worse: float) -> None:
    better, worse = sorted((better, worse))
    assert relative_change(before, better) >= relative_change(before, worse)


def test_a_rate_is_latency_per_second_of_tuning() -> None:
    assert latency_rates(rounds_of([4.0, 3.0, 3.5], seconds=10.0)) == pytest.approx([-0.1, 0.05])
    assert latency_rates(rounds_of([4.0])) == latency_rates([]) == []


def test_rounds_without_duration_are_no_error() -> None:
    assert latency_rates(rounds_of([4.0, 3.0], seconds=0.0))[0] < 0


@pytest.mark.parametrize(
    ("gained", "is_over"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 0.5], False),  # one change says nothing yet
        ([1.0, 0.5, 0.25], True),
        ([1.0, 0.8, 0.6], False),  # falls, but by less than a quarter
        ([1.0, 0.5, 0.5], False),
        ([1.0, 0.5, 0.6, 0.2], False),  # not consecutive
        ([0.5, 1.0, 0.5, 0.25], True),  # the last two
        ([1.0, 0.0, -0.1], True),  # no gain, then a loss
        ([1.0, 0.0, 0.0], True),
        ([1.0, 0.0, 0.1], False),
        ([1.0, -0.1, -0.2], True),  # slower, then even slower
        ([1.0, -0.2, -0.2], True),
        ([1.0, -0.2, -0.1], False),
        ([1.0, -0.2, 0.5], False),  # faster again
    ],
)
def test_tuning_stops_after_two_consecutive_drops_of_the_gain(gained: list[float], is_over: bool) -> None:
    assert has_diminishing_gain(after(gained), 0.25) is is_over


def test_the_drop_and_the_number_of_rounds_are_parameters() -> None:
    halved = after([1.0, 0.5, 0.25])
    assert has_diminishing_gain(halved, 0.4)
    assert not has_diminishing_gain(halved, 0.6)
    assert has_diminishing_gain(after([1.0, 0.5]), 0.4, consecutive=1)


@given(gained=st.lists(gains, max_size=8), gain_drop=st.floats(0.01, 1.0))
def test_increasing_gains_never_stop_tuning(gained: list[float], gain_drop: float) -> None:
    assert not has_diminishing_gain(after(sorted(gained)), gain_drop)


SPENT = CompileCost({"build": 5.0}, {"build": 1.8e6, "run": 1.8e6}, "rapl")


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (CompileBudget(), ""),
        (CompileBudget(minutes=1.1, candidates=13, energy=3.7e6), ""),
        (CompileBudget(minutes=1.0), "the time limit is reached (60.0 s)"),
        (CompileBudget(candidates=12), "12 candidates measured"),
        (CompileBudget(energy="1kWh"), "the energy limit is reached (3.6 MJ, rapl)"),
        (CompileBudget(money=0.30, price=0.30), "the money limit is reached (0.3 for 3.6 MJ, rapl)"),
        (CompileBudget(money=0.31, price=0.30), ""),
        (CompileBudget(minutes=0.5, candidates=1), "the time limit is reached (60.0 s)"),
    ],
)
def test_the_exhausted_limit_is_named(budget: CompileBudget, reason: str) -> None:
    assert exhausted_limit(budget, SPENT, 60.0, 12) == reason


def test_energy_limits_never_apply_without_an_energy_source() -> None:
    assert exhausted_limit(CompileBudget(energy=1.0, money=0.01, price=10.0), CompileCost({"run": 1e6}), 1.0, 1) == ""


LEFT = CompileCost({"whole": 1.0}, {"whole": 10.0}, "rapl")


@pytest.mark.parametrize(
    ("budget", "count"),
    [
        (CompileBudget(), math.inf),
        (CompileBudget(candidates=20), 8),
        (CompileBudget(minutes=2.0), 3),  # 59 s left after measuring the model, at 8 s each: half of 7 candidates
        (CompileBudget(energy=300.0), 2),  # 40 J left, at 10 J each
        (CompileBudget(energy=270.0), 1),
        (CompileBudget(energy=260.0), 0),  # the rest only pays for measuring the model
        (CompileBudget(minutes=1.01), 0),
        (CompileBudget(money=300.0, price=3.6e6), 2),
        (CompileBudget(candidates=12), 0),
        (CompileBudget(candidates=13, energy=1e6), 1),
    ],
)
def test_as_many_candidates_are_built_as_the_rest_pays_for(budget: CompileBudget, count: float) -> None:
    spent = CompileCost({"build": 96.0, "whole": 4.0}, {"build": 100.0, "run": 20.0, "whole": 130.0}, "rapl")
    affordable = affordable_candidates(budget, spent, 60.0, 12, LEFT)
    assert affordable == count or count <= affordable < count + 1


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (CompileBudget(), 0.0),
        (CompileBudget(candidates=5), 0.0),
        (CompileBudget(minutes=2), 0.1),  # 5 s of 120 s, of which 60 s have passed and 10 s are reserved
        (CompileBudget(energy=500.0), 0.5),  # 15 J of 500 J, of which 470 J are spent or reserved
        (CompileBudget(minutes=2, energy=500.0), 0.5),
        (CompileBudget(money=5, price="36000/kWh"), 0.5),
        (CompileBudget(money=1, price="36000/kWh"), math.inf),
        (CompileBudget(minutes=1), math.inf),
    ],
)
def test_the_share_of_the_rest_of_a_budget(budget: CompileBudget, share: float) -> None:
    spent = CompileCost({"build": 20.0}, {"build": 200.0}, "rapl")
    reserve = CompileCost({"whole": 10.0}, {"whole": 270.0}, "rapl")
    more = CompileCost({"update": 5.0}, {"update": 15.0}, "rapl")
    assert share_of_rest(budget, spent, 60.0, more, reserve) == pytest.approx(share)


def test_one_candidate_shows_what_the_others_cost() -> None:
    assert affordable_candidates(CompileBudget(energy=1e6), CompileCost({}, {"whole": 1.0}, "rapl"), 1.0, 0) == 1
