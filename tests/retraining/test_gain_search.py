"""Ranking of plans by gain and speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.retraining.gain_search import GainSearch
from onefold.vocabulary.retraining import PlanEstimate, RetrainingPlan

PLANS = [RetrainingPlan(8, 32, lr=lr) for lr in (1e-3, 3e-3, 3e-4, 1e-4, 1e-5)]
SECONDS = 0.01  # per sample
gains = st.floats(-1, 1)
seconds = st.floats(1e-4, 1)


def gain_search(alpha: float, count: int = len(PLANS), sample_s: float = SECONDS) -> GainSearch:
    search = GainSearch(alpha)
    search.offer([PlanEstimate(plan, 10**6, plan.effective_batch * sample_s) for plan in PLANS[:count]])
    return search


@given(alpha=st.floats(0, 1), results=st.lists(st.tuples(st.integers(0, 4), gains, seconds), max_size=20))
def test_merits_are_at_most_one_and_the_best_plan_has_the_highest(
    alpha: float, results: list[tuple[int, float, float]]
) -> None:
    search = gain_search(alpha)
    for result, gain, seconds_per_sample in results:
        merit = search.tell(PLANS[result], gain, seconds_per_sample)
        assert merit == search.merit(PLANS[result])
    for plan in PLANS:
        assert 0 <= search.merit(plan) <= 1 + 1e-9
    assert search.best() in PLANS
    tried = {PLANS[result] for result, *_ in results}
    assert not tried or search.best() in tried
    assert search.merit(search.best()) == max(search.merit(plan) for plan in tried or PLANS)


@given(alpha=st.floats(0, 1), fast=seconds, slow=seconds)
def test_alpha_weighs_gain_against_speed(alpha: float, fast: float, slow: float) -> None:
    fast, slow = sorted((fast, slow))
    search = gain_search(alpha, count=2)
    search.tell(PLANS[0], 0.2, slow)  # defines the usual gain
    search.tell(PLANS[1], 0.1, fast)  # half of it
    assert search.merit(PLANS[0]) == pytest.approx(alpha + (1 - alpha) * fast / slow)
    assert search.merit(PLANS[1]) == pytest.approx(alpha * 0.5 + (1 - alpha))


@given(data=st.data(), best=st.integers(0, 2))
def test_the_highest_gain_wins_if_alpha_is_one(data: st.DataObject, best: int) -> None:
    search = gain_search(1.0, count=3)
    for index, plan in enumerate(PLANS[:3]):
        search.tell(plan, 0.5 if index == best else data.draw(st.floats(0.05, 0.15)), data.draw(seconds))
    assert search.best() == PLANS[best]


@given(
    times=st.lists(seconds, min_size=5, max_size=5, unique=True),
    some=st.lists(gains, min_size=5, max_size=5),
)
def test_the_fastest_plan_wins_if_alpha_is_zero(times: list[float], some: list[float]) -> None:
    search = gain_search(0.0)
    for plan, gain, time_s in zip(PLANS, some, times):
        search.tell(plan, gain, time_s)
    assert search.best() == PLANS[times.index(min(times))]


@pytest.mark.parametrize("falls_to", [1.0, 0.95, 0.85])
def test_shrinking_gains_do_not_change_the_plan(falls_to: float) -> None:
    search = gain_search(1.0, count=2)
    search.tell(PLANS[0], 1.0, SECONDS)
    search.tell(PLANS[1], 0.5 * falls_to, SECONDS)
    gain = falls_to**2
    for _ in range(30):
        search.tell(PLANS[0], gain, SECONDS)
        assert search.best() == PLANS[0]
        gain *= falls_to


def test_a_plan_that_becomes_worse_is_replaced() -> None:
    search = gain_search(1.0, count=2)
    search.tell(PLANS[0], 1.0, SECONDS)
    search.tell(PLANS[1], 0.8, SECONDS)
    assert search.best() == PLANS[0]
    for _ in range(3):
        search.tell(PLANS[0], 0.0, SECONDS)
    assert search.best() == PLANS[1]
    other = search.best_other(PLANS[0])
    assert other is not None
    assert other[0] == PLANS[1]
    assert other[1] > search.merit(PLANS[0])


def test_one_lucky_micro_window_does_not_decide() -> None:
    search = gain_search(1.0, count=2)
    search.tell(PLANS[0], 1.0, SECONDS)
    search.tell(PLANS[1], 1000.0, SECONDS)
    for _ in range(8):
        search.tell(PLANS[1], 0.1, SECONDS)
    assert search.best() == PLANS[0]


def test_plans_are_tried_in_the_offered_order() -> None:
    search = gain_search(0.5)
    assert search.untried() == PLANS
    assert search.best_other(PLANS[0]) is None
    search.tell(PLANS[1], 0.1, SECONDS)
    assert search.untried() == [PLANS[0], *PLANS[2:]]
    assert search.best() == PLANS[1]
    assert search.best_other(PLANS[1]) is None


def test_records_of_plans_that_stay_are_kept() -> None:
    search = gain_search(1.0, count=3)
    search.tell(PLANS[0], 0.1, SECONDS)
    search.tell(PLANS[1], 0.3, SECONDS)
    search.offer([PlanEstimate(plan, 5, 1.0) for plan in (PLANS[1], PLANS[3])])
    assert search.untried() == [PLANS[3]]
    result = {estimate.plan: estimate for estimate in search.estimates}
    assert list(result) == [PLANS[1], PLANS[3]]
    assert result[PLANS[1]].gain_per_s == 0.3
    assert result[PLANS[1]].memory_bytes == 5
    assert result[PLANS[3]].gain_per_s is None


def test_untried_plans_are_assumed_usual_and_as_fast_as_predicted() -> None:
    search = gain_search(0.5, count=2)
    search.tell(PLANS[0], 0.1, 2 * SECONDS)
    assert search.merit(PLANS[1]) == pytest.approx(1.0)
    assert search.merit(PLANS[0]) == pytest.approx(0.75)


# Regressions


def test_the_first_plan_is_the_best_if_none_was_tried() -> None:
    search = GainSearch(0.5)
    search.offer([PlanEstimate(plan, 5, update_s) for plan, update_s in zip(PLANS, (1.0, 0.1, 0.01))])
    assert search.best() == PLANS[0]  # not the fastest one, which trains the fewest layers


@pytest.mark.parametrize("first", [0.0, -0.5])
def test_a_first_plan_without_gain_is_not_the_best(first: float) -> None:
    search = gain_search(1.0, count=2)
    search.tell(PLANS[0], first, SECONDS)
    search.tell(PLANS[1], 0.5, SECONDS)
    assert search.best() == PLANS[1]


def test_poor_plans_do_not_inflate_later_gains() -> None:
    search = gain_search(1.0)
    for plan, gain in zip(PLANS, (0.2, 0.01, 0.01, 0.01, 0.1)):
        search.tell(plan, gain, SECONDS)
    assert search.best() == PLANS[0]
