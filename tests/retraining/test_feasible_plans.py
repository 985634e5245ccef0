"""The search for at most ten plans that fit the memory limit."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import KINDS, Kind, ResidualNet, cross_entropy

from onefold.retraining.batch_cost import BatchCost
from onefold.retraining.feasible_plans import (
    LARGEST_BATCH,
    MAX_PLANS,
    SMALLEST_EFFECTIVE_BATCH,
    effective_batch,
    feasible_plans,
    largest_batch,
    segment_counts,
)
from onefold.retraining.network_profile import OVERHEAD_BYTES, NetworkProfile, profile_network
from onefold.retraining.options import AUTO
from onefold.retraining.planning_context import MEMORY_MARGIN, PlanningContext, learning_key, remembered_gains
from onefold.retraining.rule_facts import plan_facts
from onefold.retraining.rule_file import read_rules
from onefold.retraining.rules import FACTS
from onefold.retraining.stage_times import StageTime
from onefold.retraining.stages import split_into_stages
from onefold.vocabulary.retraining import EFFECTIVE_BATCH, MemoryLesson, RetrainingPlan

RULES = read_rules()
HELD = 50_000_000
ROOMY = 10**12


PROFILED = {
    "residual": Kind(lambda: ResidualNet(8, 6), (3, 32, 32)),
    "transformer": KINDS["transformer"],
    "deciding": KINDS["deciding"],
}


@cache
def profile_of(name: str) -> NetworkProfile:
    network, few = PROFILED[name].network(), PROFILED[name].batch(4)
    staged = split_into_stages(network, few[:-1])
    return profile_network(staged, few, cross_entropy, clock=time.process_time)  # also true on a busy machine


def context(
    name: str = "residual", limit: int = ROOMY, left_s: float = 3600.0, samples: int = 50_000
) -> PlanningContext:
    return PlanningContext(profile_of(name), HELD, limit, left_s, samples, has_batch_norm=name == "residual")


def limit_for(name: str, plan: RetrainingPlan) -> int:
    """Return a limit that the plan just fits."""
    return round(profile_of(name).estimate(plan, HELD).memory_bytes / (1 - MEMORY_MARGIN)) + 2


def smallest_limit(name: str) -> int:
    return limit_for(name, RetrainingPlan(1, freeze_rate=1.0))


def context_between(name: str, share: float, left_s: float, samples: int, optimizer: str) -> PlanningContext:
    """Return a context whose limit is that share of the way from the smallest to the largest plan."""
    smallest, largest = smallest_limit(name), limit_for(name, RetrainingPlan(LARGEST_BATCH))
    limit = round(smallest + share * (largest - smallest))
    return replace(context(name, limit, left_s, samples), optimizer=optimizer)


contexts = st.builds(
    context_between,
    st.sampled_from(sorted(PROFILED)),
    st.floats(0, 1.2),
    st.floats(0.1, 3600),
    st.integers(20, 100_000),
    st.sampled_from(["adam", "sgd"]),
)


@given(fitting=st.integers(-1, 300), most=st.integers(1, 300))
def test_the_largest_batch_matches_exhaustive_search(fitting: int, most: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= fitting

    brute = max((size for size in range(1, most + 1) if size <= fitting), default=0)
    assert largest_batch(fits, most) == brute
    assert all(1 <= size <= most for size in asked)
    assert len(asked) <= 2 + most.bit_length()


@settings(max_examples=40)
@given(where=contexts)
def test_plans_fit_and_share_one_effective_batch(where: PlanningContext) -> None:
    plans = feasible_plans(where, RULES)
    assert 1 <= len(plans) <= MAX_PLANS
    assert len({estimate.plan.effective_batch for estimate in plans}) == 1
    for estimate in plans:
        assert where.fits(estimate.plan)
        assert estimate == where.estimate(estimate.plan)
        assert estimate.memory_bytes <= where.limit_bytes * (1 - MEMORY_MARGIN)
        assert 1e-5 <= estimate.plan.lr <= 1e-2
        assert 1 <= estimate.plan.batch_size <= estimate.plan.effective_batch <= EFFECTIVE_BATCH
        assert estimate.plan.effective_batch >= SMALLEST_EFFECTIVE_BATCH
        assert 1 <= estimate.plan.segments <= where.max_segments
        assert 0 <= estimate.plan.freeze_rate <= 1
        assert estimate.plan.optimizer == where.optimizer


def test_plans_that_gained_before_come_first() -> None:
    plans = [item.plan for item in feasible_plans(context(), RULES)]
    gains = {learning_key(plans[0]): 0.01, learning_key(plans[2]): 0.2, learning_key(plans[3]): 0.4}
    ranked = [item.plan for item in feasible_plans(replace(context(), gains=gains), RULES)]
    assert ranked == [plans[3], plans[2], plans[1], *plans[4:], plans[0]]


def test_gains_are_remembered_by_how_a_plan_learns() -> None:
    plan = RetrainingPlan(8, 4, freeze_rate=0.5)
    lessons = [MemoryLesson("here", "model", replace(plan, segments=count), 1, 1, count, 1.0) for count in (1, 3)]
    known = remembered_gains([*lessons, MemoryLesson("here", "model", replace(plan, lr=0.1), 1, 1)])
    assert known == {learning_key(replace(plan, batch_size=4, accumulation=8)): 1.0}  # relative to the best


def test_gains_count_in_windows_of_another_length() -> None:
    rates = {plan.effective_batch: plan for plan in _first_plans()}
    assert len(rates) == 2
    assert len({learning_key(plan) for plan in rates.values()}) == 1


def _first_plans() -> list[RetrainingPlan]:
    return [feasible_plans(context(left_s=left_s), RULES)[0].plan for left_s in (0.05, 1e6)]


def test_gains_on_this_machine_count_more_than_those_of_others() -> None:
    first, second, third = (item.plan for item in feasible_plans(context(), RULES)[:3])
    here = [MemoryLesson("here", "model", plan, 1, 1, gain) for plan, gain in ((first, 0.1), (second, 0.4))]
    there = [MemoryLesson("there", "model", plan, 1, 1, gain) for plan, gain in ((first, 9.0), (third, 4.5))]
    gains = remembered_gains(here, there)
    assert gains == {learning_key(first): 0.25, learning_key(second): 1.0, learning_key(third): 0.5}
    assert remembered_gains([MemoryLesson("here", "model", first, 1, 1, -0.1)]) == {}


def test_both_optimizers_are_searched_unless_one_is_given() -> None:
    where = replace(context(), optimizer=AUTO)
    plans = [item.plan for item in feasible_plans(where, RULES)]
    assert {plan.optimizer for plan in plans} == {"adam", "sgd"}
    assert len(plans) <= MAX_PLANS
    assert plans[0].optimizer == "adam"
    assert plans[0].freeze_rate == 0.0
    assert all(where.fits(plan) for plan in plans)


def test_an_optimizer_with_less_state_needs_less_memory() -> None:
    where = replace(context(), optimizer=AUTO)
    plan = RetrainingPlan(8)
    adam, sgd = (where.estimate(replace(plan, optimizer=kind)).memory_bytes for kind in where.optimizers)
    weights = sum(weight.nbytes for weight in where.profile.staged.network.parameters())
    assert adam - sgd == pytest.approx(weights, rel=0.01)
    between = replace(context(limit=limit_for("residual", replace(plan, optimizer="sgd"))), optimizer=AUTO)
    assert between.fits(replace(plan, optimizer="sgd"))
    assert not between.fits(plan)


def test_plans_begin_with_the_fewest_frozen_layers_and_the_usual_learning_rate() -> None:
    plans = [item.plan for item in feasible_plans(context(), RULES)]
    assert [plan.freeze_rate for plan in plans[:2]] == [0.0, 0.0]
    assert plans[1].lr == pytest.approx(3 * plans[0].lr)
    assert max(plan.freeze_rate for plan in plans[:4]) <= 0.25


def test_no_plan_if_nothing_fits() -> None:
    for name in PROFILED:
        assert feasible_plans(context(name, HELD), RULES) == ()
        assert feasible_plans(context(name, 1), RULES) == ()


def test_the_smallest_feasible_limit_has_a_plan() -> None:
    for name in PROFILED:
        assert feasible_plans(context(name, smallest_limit(name)), RULES)


def test_a_tight_limit_yields_cheaper_plans() -> None:
    tight = context(limit=limit_for("residual", RetrainingPlan(2, freeze_rate=0.5, segments=2)))
    for item in feasible_plans(tight, RULES):
        assert not tight.fits(RetrainingPlan(EFFECTIVE_BATCH))
        assert item.plan.batch_size < 16 or item.plan.freeze_rate > 0.5 or item.plan.segments > 1


@settings(max_examples=30)
@given(where=contexts)
def test_learning_rates_are_spread_around_the_base(where: PlanningContext) -> None:
    rates = {item.plan.lr for item in feasible_plans(where, RULES)}
    assert max(rates) / min(rates) <= 9.1
    shapes = {
        (item.plan.batch_size, item.plan.freeze_rate, item.plan.segments) for item in feasible_plans(where, RULES)
    }
    assert len(rates) > 1 or len(shapes) > 3


def test_a_long_window_has_the_full_effective_batch() -> None:
    assert effective_batch(context(), 1e9) == EFFECTIVE_BATCH
    assert {item.plan.effective_batch for item in feasible_plans(context(left_s=1e6), RULES)} == {EFFECTIVE_BATCH}


@given(short=st.floats(0.01, 1e4), longer=st.floats(1, 100), speed=st.floats(0.1, 1e5))
def test_a_shorter_window_has_a_smaller_effective_batch(short: float, longer: float, speed: float) -> None:
    few, many = (effective_batch(context(left_s=left_s), speed) for left_s in (short, short * longer))
    assert SMALLEST_EFFECTIVE_BATCH <= few <= many <= EFFECTIVE_BATCH
    assert EFFECTIVE_BATCH % few == 0


def test_a_busy_machine_makes_fewer_updates() -> None:
    speed = 2 * 1500 * EFFECTIVE_BATCH / 3600  # samples per second for twice as many updates as 256 samples need
    idle, busy = context(), replace(context(), contention=4.0)
    assert effective_batch(idle, speed) == EFFECTIVE_BATCH
    assert effective_batch(busy, speed) == EFFECTIVE_BATCH // 2
    estimate = feasible_plans(idle, RULES)[0]
    assert plan_facts(busy, estimate, speed)["updates"] == pytest.approx(
        plan_facts(idle, estimate, speed)["updates"] / 4
    )


def test_a_short_window_has_the_smallest_effective_batch() -> None:
    quickest = max(item.samples_per_s for item in feasible_plans(context(), RULES))
    short = feasible_plans(context(left_s=10 * EFFECTIVE_BATCH / quickest), RULES)  # ten updates of 256 samples
    assert {item.plan.effective_batch for item in short} == {SMALLEST_EFFECTIVE_BATCH}


def test_the_effective_batch_is_a_small_part_of_the_data() -> None:
    assert effective_batch(context(samples=1024), 1e9) == 64  # in 100 epochs, larger batches make too few updates
    assert effective_batch(context(samples=30), 1e9) == SMALLEST_EFFECTIVE_BATCH


@given(most=st.integers(1, 500))
def test_segment_counts_rise_to_the_maximum(most: int) -> None:
    counts = segment_counts(most)
    assert counts[0] == 1
    assert counts[-1] == most
    assert counts == sorted(set(counts))
    assert all(later <= 2 * earlier for earlier, later in pairwise(counts))


def test_segments_are_at_most_a_third_of_the_layers() -> None:
    assert context("deciding").max_segments == 1
    staged = profile_of("residual").staged
    assert context("residual").max_segments == min(staged.layers // 3, len(staged.stages)) > 3


def test_batch_norm_gets_large_batches_if_they_are_as_fast() -> None:
    assert all(item.plan.batch_size >= 16 for item in feasible_plans(context(), RULES))


def test_rules_get_every_fact() -> None:
    where = context()
    first_estimate = feasible_plans(where, RULES)[0]
    facts = plan_facts(where, first_estimate, first_estimate.samples_per_s)
    assert facts.keys() == FACTS["narrow"].keys()
    assert all(isinstance(facts[name], kind) for name, kind in FACTS["narrow"].items())
    assert facts["fastest_update_share"] == 1.0
    assert facts["passes"] == pytest.approx(facts["updates"] * facts["effective_batch"] / facts["samples"])


# Regressions


def test_plans_are_distinct() -> None:
    plans = feasible_plans(replace(context(), optimizer="sgd"), RULES)
    assert len({estimate.plan for estimate in plans}) == len(plans)


def test_plans_fit_with_corrections_of_smaller_batches() -> None:
    profile = profile_of("residual")
    took = {16: 2.0, 32: 0.5, 64: 0.5}
    lessons = [
        MemoryLesson(
            "here", "this", plan, profile.tensor_bytes(plan), OVERHEAD_BYTES + round(ratio * profile.tensor_bytes(plan))
        )
        for size, ratio in took.items()
        for rate in (0.0, 0.25, 0.5, 0.75, 1.0)
        for segments in segment_counts(context().max_segments)
        for plan in [RetrainingPlan(size, freeze_rate=rate, segments=segments)]
    ]
    times = tuple(StageTime(BatchCost(1e-3, 1e-3), BatchCost(2e-3, 2e-3)) for _ in profile.times)
    learned = NetworkProfile(profile.staged, profile.trace, times, lessons)
    limit = round(learned.estimate(RetrainingPlan(32), HELD).memory_bytes / (1 - MEMORY_MARGIN)) + 2
    where = PlanningContext(learned, HELD, limit, 10.0, 200, has_batch_norm=True)
    assert all(where.fits(item.plan) for item in feasible_plans(where, RULES))
