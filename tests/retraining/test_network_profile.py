"""Predicted cost of plans, and its correction by measurements."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_networks import KINDS, Alive, Kind, ResidualNet, cross_entropy, plan_footprint

from onefold.retraining.network_profile import (
    INFERENCE_OVERHEAD_BYTES,
    OVERHEAD_BYTES,
    NetworkProfile,
    profile_network,
)
from onefold.retraining.stages import split_into_stages
from onefold.vocabulary.retraining import MemoryLesson, RetrainingPlan

DEEP = Kind(lambda: ResidualNet(8, 6), (3, 16, 16))
HELD = 200_000_000


@cache
def profiled() -> NetworkProfile:
    network, few = DEEP.network(), DEEP.batch(4)
    return profile_network(split_into_stages(network, few[:-1]), few, cross_entropy)


plans = st.builds(
    RetrainingPlan,
    st.sampled_from([2**power for power in range(9)]),
    st.integers(1, 256),
    freeze_rate=st.floats(0, 1),
    segments=st.integers(1, 8),
)


def with_lessons(*lessons: tuple[RetrainingPlan, int]) -> NetworkProfile:
    """Return a profile with measurements of some plans."""
    expected = [MemoryLesson("here", "this", plan, profiled().tensor_bytes(plan), took) for plan, took in lessons]
    return NetworkProfile(profiled().staged, profiled().trace, profiled().times, expected)


@given(plan=plans)
def test_without_lessons_tensors_and_the_overhead_are_predicted(plan: RetrainingPlan) -> None:
    assert profiled().tensor_bytes(plan) == plan_footprint(profiled().trace, profiled().staged, plan).bytes
    assert profiled().added_bytes(plan) == profiled().with_overhead(profiled().tensor_bytes(plan))
    assert profiled().estimate(plan, HELD).memory_bytes == HELD + profiled().added_bytes(plan)
    assert profiled().estimate(plan, HELD).gain_per_s is None


@given(plan=plans, ratio=st.floats(0.6, 1.9), accumulation=st.integers(1, 9), lr=st.floats(1e-5, 1e-2))
def test_a_measured_plan_is_predicted_as_measured(
    plan: RetrainingPlan, ratio: float, accumulation: int, lr: float
) -> None:
    measured = round(profiled().with_overhead(profiled().tensor_bytes(plan)) * ratio)
    profile = with_lessons((plan, measured))
    same = replace(plan, accumulation=accumulation, lr=lr)  # which do not change its memory
    assert profile.added_bytes(same) == pytest.approx(measured, abs=2)


@given(plan=plans, lessons=st.lists(st.tuples(plans, st.integers(0, 10**9)), min_size=1, max_size=5))
def test_corrections_are_within_a_factor_of_two(
    plan: RetrainingPlan, lessons: list[tuple[RetrainingPlan, int]]
) -> None:
    assert 0.5 <= with_lessons(*lessons).correction(plan) <= 2.0


def test_similar_plans_dominate_the_correction() -> None:
    low, high = RetrainingPlan(4), RetrainingPlan(64)
    profile = with_lessons(
        (low, round(1.1 * profiled().with_overhead(profiled().tensor_bytes(low)))),
        (high, round(1.6 * profiled().with_overhead(profiled().tensor_bytes(high)))),
    )
    corrections = [profile.correction(RetrainingPlan(size)) for size in (4, 8, 16, 32, 64)]
    assert corrections == sorted(corrections)
    assert corrections[0] == pytest.approx(1.1, abs=0.02)
    assert corrections[-1] == pytest.approx(1.6, abs=0.02)


def test_another_plan_does_not_lower_the_prediction() -> None:
    small = RetrainingPlan(4)
    profile = with_lessons((small, round(0.7 * profiled().with_overhead(profiled().tensor_bytes(small)))))
    assert profile.correction(small) == pytest.approx(0.7, abs=0.01)
    assert profile.correction(RetrainingPlan(16)) == 1.0


@given(plan=plans)
def test_time_is_the_sum_of_forward_backward_and_recomputation(plan: RetrainingPlan) -> None:
    took = profiled().batch_s(plan)
    assert profiled().estimate(plan, HELD).update_s == pytest.approx(plan.accumulation * took)
    assert profiled().batch_s(replace(plan, segments=1)) <= took + 1e-12  # recomputation takes longer
    assert profiled().batch_s(replace(plan, freeze_rate=1.0, segments=1)) <= took + 1e-12
    assert took < profiled().batch_s(replace(plan, batch_size=2 * plan.batch_size))
    forward = sum(time_s.forward.at(plan.batch_size) for time_s in profiled().times)
    both = forward + sum(time_s.backward.at(plan.batch_size) for time_s in profiled().times)
    assert forward < took <= both + forward + 1e-12
    assert profiled().batch_s(RetrainingPlan(plan.batch_size)) == pytest.approx(both)


def test_every_stage_has_a_cost() -> None:
    layers = profiled().layers()
    assert [item.name for item in layers] == [stage.name for stage in profiled().staged.stages]
    weights = profiled().staged.network.parameters()
    assert sum(item.weight_bytes for item in layers) == 4 * sum(weight.nelement() for weight in weights)
    assert [item.saved_bytes for item in layers] == [stage.saved.per_sample for stage in profiled().trace.stages[:-1]]
    assert all(item.forward_s > 0 and item.backward_s > 0 for item in layers)


def test_inference_needs_less_than_training_and_grows_with_the_batch() -> None:
    sizes = [profiled().inference_bytes(size) for size in (1, 8, 64)]
    assert sizes == sorted(sizes)
    assert sizes[-1] < profiled().added_bytes(RetrainingPlan(64))


def test_the_cheapest_plan_is_found() -> None:
    some = [RetrainingPlan(8), RetrainingPlan(2), RetrainingPlan(2, freeze_rate=1.0), RetrainingPlan(64)]
    result = profiled().cheapest(some, HELD)
    assert result.plan == some[2]
    assert result.memory_bytes == min(profiled().estimate(plan, HELD).memory_bytes for plan in some)


def test_earlier_lessons_are_used() -> None:
    kind = KINDS["perceptron"]
    staged = split_into_stages(kind.network(), kind.batch(4)[:-1])
    lesson = MemoryLesson("here", "this", RetrainingPlan(8), 10**7, 15 * 10**6 + OVERHEAD_BYTES * 3 // 2)
    profile = profile_network(staged, kind.batch(4), cross_entropy, (lesson,))
    assert profile.lessons == [lesson]
    assert profile.correction(RetrainingPlan(8)) == pytest.approx(1.5)


# Regressions


def test_inference_needs_no_more_than_predicted() -> None:
    network, batch = profiled().staged.network.eval(), DEEP.batch(64)
    with torch.no_grad(), Alive([*network.parameters(), *network.buffers(), *batch]) as alive:
        network(*batch[:-1])
    expected = profiled().inference_bytes(64) - INFERENCE_OVERHEAD_BYTES - profiled().trace.batch.at(64)
    assert alive.peak <= 1.02 * expected
