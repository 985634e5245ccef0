"""Which plan a micro-window runs: the most promising one first, others while they may be better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onefold.retraining.rules import Rules
from onefold.retraining.strategy import CHALLENGE, EXPLORATION_SHARE, FIRST_WINDOWS, MAX_FAILED_TRIALS, GainStrategy
from onefold.vocabulary.retraining import PlanEstimate, RetrainingPlan

FIRST = RetrainingPlan(32)
FASTER, SGD, STEEPER_SGD = (
    replace(FIRST, lr=3e-3),
    replace(FIRST, optimizer="sgd"),
    replace(FIRST, optimizer="sgd", lr=3e-3),
)
FROZEN, SLOWER = replace(FIRST, freeze_rate=0.25), replace(FIRST, lr=3e-4)
PLANS = (FIRST, FASTER, SGD, FROZEN, STEEPER_SGD, SLOWER)
SECONDS = 0.01  # per sample


def strategy(*plans: RetrainingPlan) -> GainStrategy:
    result = GainStrategy(Rules((), ()), alpha=1.0)
    result.search.offer([PlanEstimate(plan, 10**6, 1.0) for plan in plans or PLANS])
    return result


def run(work: GainStrategy, gains: dict[RetrainingPlan, float], count: int) -> list[RetrainingPlan]:
    """Return the plans of the first micro-windows, which gain what is given."""
    chosen = []
    for _ in range(count):
        plan = work.next_plan(0.0)
        chosen.append(plan)
        work.tell(plan, gains.get(plan, 0.1), SECONDS)
    return chosen


def test_the_most_promising_plan_is_measured_before_others_are_compared_with_it() -> None:
    assert run(strategy(), {}, FIRST_WINDOWS + 2) == [*[FIRST] * FIRST_WINDOWS, FASTER, SGD]


def test_all_plans_are_tried_while_exploration_lasts() -> None:
    assert run(strategy(), {}, FIRST_WINDOWS + len(PLANS) - 1)[FIRST_WINDOWS:] == list(PLANS[1:])
    assert strategy().next_plan(EXPLORATION_SHARE) == FIRST


def test_a_learning_rate_that_was_too_high_is_not_raised() -> None:
    tried = run(strategy(), {FIRST: -0.1}, FIRST_WINDOWS + 4)
    assert FASTER not in tried
    assert SLOWER in tried
    tried = run(strategy(), {SGD: -0.1}, FIRST_WINDOWS + 4)
    assert STEEPER_SGD not in tried


def test_exploration_ends_after_some_failures() -> None:
    plans = [FIRST, *(replace(FIRST, freeze_rate=rate) for rate in (0.2, 0.4, 0.6, 0.8, 1.0))]
    lost = dict.fromkeys(plans[1:], -0.1)
    tried = run(strategy(*plans), lost, FIRST_WINDOWS + len(plans))
    assert len(set(tried)) == 1 + MAX_FAILED_TRIALS
    assert tried[-1] == FIRST


@pytest.mark.parametrize(("share", "winner"), [(CHALLENGE - 0.05, FIRST), (CHALLENGE + 0.5, FASTER)])
def test_another_plan_must_be_clearly_better(share: float, winner: RetrainingPlan) -> None:
    work = strategy(FIRST, FASTER)
    run(work, {FIRST: 0.1, FASTER: 0.1 * share}, FIRST_WINDOWS + 1)
    assert work.next_plan(EXPLORATION_SHARE) == winner


def test_a_fast_plan_that_lost_is_no_alternative() -> None:
    work = GainStrategy(Rules((), ()), alpha=0.9)
    work.search.offer([PlanEstimate(plan, 10**6, 1.0) for plan in (FIRST, FROZEN)])
    run(work, {FIRST: 0.1}, FIRST_WINDOWS)
    work.tell(FROZEN, -0.1, SECONDS / 10)
    work.tell(FIRST, -0.5, SECONDS)
    assert work.best_other_merit(FIRST) == 0.0


def test_a_plan_that_no_longer_fits_is_replaced_by_one_of_its_optimizer() -> None:
    work = strategy(FIRST, SGD)
    run(work, {SGD: 1.0}, FIRST_WINDOWS + 1)
    assert work.next_plan(EXPLORATION_SHARE) == SGD
    smaller = [replace(plan, batch_size=8, accumulation=4) for plan in (FIRST, SGD)]
    work.search.offer([PlanEstimate(plan, 10**6, 1.0) for plan in smaller])
    assert work.next_plan(0.5).optimizer == "sgd"
