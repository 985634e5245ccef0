"""The predicted memory of a plan is what its steps use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import KINDS, Alive, Kind, ResidualNet, Transformer, cross_entropy, perceptron, plan_footprint
from torch import nn

from onefold.meter.memory import reset_high_water
from onefold.retraining.batch_cost import BatchCost
from onefold.retraining.lean_optimizer import LeanOptimizer
from onefold.retraining.memory_model import OPTIMIZER_COPIES, checkpoint_segments
from onefold.retraining.memory_trace import USED_WORKSPACE, MemoryCurve, StageTrace, StepTrace, trace_step
from onefold.retraining.stages import StagedNetwork, split_into_stages
from onefold.retraining.training_step import Stepper
from onefold.vocabulary.retraining import RetrainingPlan

DEEP = {
    "residual": Kind(lambda: ResidualNet(8, 6), (3, 8, 8)),
    "inverted": KINDS["inverted"],
    "transformer": Kind(lambda: Transformer(16, 3, 6, 0.0), (6,), takes_words=True),
    "perceptron": Kind(lambda: perceptron(32, 20), (32,)),
}


@cache
def traced(name: str) -> tuple[StagedNetwork, StepTrace]:
    kind = {**KINDS, **DEEP}[name]
    network, few = kind.network(), kind.batch(4)
    staged = split_into_stages(network, few[:-1])
    return staged, trace_step(staged, few, cross_entropy)


names = st.sampled_from(sorted({**KINDS, **DEEP}))
plans = st.builds(
    RetrainingPlan,
    st.integers(1, 200),
    freeze_rate=st.floats(0, 1),
    segments=st.integers(1, 9),
    optimizer=st.sampled_from(["adam", "sgd"]),
)


def live_peak(kind: Kind, plan: RetrainingPlan) -> tuple[float, float]:
    """Return the peak of live bytes over two updates, and the prediction, both without the batch."""
    network, few, batch = kind.network(), kind.batch(4), kind.batch(plan.batch_size)
    staged = split_into_stages(network, few[:-1])
    trace = trace_step(staged, few, cross_entropy)
    stepper = Stepper(staged, trace, cross_entropy)
    stepper.use_plan(plan)
    with Alive([*network.parameters(), *network.buffers(), *batch]) as alive:
        for _ in range(2):
            stepper.update([batch], plan.batch_size, 1e-3)
    predicted = plan_footprint(trace, staged, plan)
    return alive.peak, predicted.bytes - predicted.batch


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("freeze_rate", [0.0, 0.5])
@pytest.mark.parametrize("name", DEEP)
def test_prediction_matches_live_tensors(name: str, freeze_rate: float, optimizer: str) -> None:
    result, predicted = live_peak(DEEP[name], RetrainingPlan(32, freeze_rate=freeze_rate, optimizer=optimizer))
    assert predicted == pytest.approx(result, rel=0.02)


@pytest.mark.parametrize("name", KINDS)
def test_live_tensors_never_exceed_the_prediction_without_segments(name: str) -> None:
    for freeze_rate in (0.0, 0.5, 1.0):
        result, predicted = live_peak(KINDS[name], RetrainingPlan(32, freeze_rate=freeze_rate))
        unwritten = USED_WORKSPACE if name == "recurrent" else 1.0
        assert unwritten * result <= 1.03 * predicted


@pytest.mark.parametrize("name", ["residual", "inverted", "transformer"])
def test_prediction_matches_live_tensors_with_segments(name: str) -> None:
    result, predicted = live_peak(DEEP[name], RetrainingPlan(32, segments=3))
    assert predicted == pytest.approx(result, rel=0.02)


@given(name=names, plan=plans, more=st.integers(1, 100))
def test_a_larger_batch_needs_more(name: str, plan: RetrainingPlan, more: int) -> None:
    staged, trace = traced(name)
    larger = RetrainingPlan(plan.batch_size + more, 1, plan.freeze_rate, plan.segments, optimizer=plan.optimizer)
    assert plan_footprint(trace, staged, plan).bytes < plan_footprint(trace, staged, larger).bytes


@given(name=names, size=st.integers(1, 200), rates=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_freezing_more_needs_no_more_except_the_output_of_frozen_stages(
    name: str, size: int, rates: tuple[float, float]
) -> None:
    staged, trace = traced(name)
    less, more = (plan_footprint(trace, staged, RetrainingPlan(size, freeze_rate=rate)) for rate in sorted(rates))
    frozen = staged.frozen_stages(max(rates))
    entering = trace.stages[frozen - 1].output.at(size) if frozen else 0.0
    assert more.bytes <= less.bytes + entering
    assert more.gradients <= less.gradients
    assert more.optimizer <= less.optimizer


def test_freezing_the_embedding_of_a_transformer_does_not_need_more() -> None:
    staged, trace = traced("transformer")
    all_learn, all_but_one = (
        plan_footprint(trace, staged, RetrainingPlan(11, freeze_rate=rate)) for rate in (0.0, 1 / 16)
    )
    assert all_but_one.bytes <= all_learn.bytes


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_an_optimizer_step_takes_what_is_predicted(optimizer: str) -> None:
    weights = [nn.Parameter(torch.zeros(size)) for size in (1000, 30_000)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    lean = LeanOptimizer(optimizer)
    with Alive([*weights, *(weight.grad for weight in weights if weight.grad is not None)]) as alive:
        for _ in range(2):
            lean.step(weights, 1e-3)
    assert alive.peak - lean.state_bytes == OPTIMIZER_COPIES[optimizer] * 4 * 30_000


@given(name=names, plan=plans)
def test_gradients_and_optimizer_state_are_included(name: str, plan: RetrainingPlan) -> None:
    staged, trace = traced(name)
    result = plan_footprint(trace, staged, plan)
    training = {weight for stage in staged.stages[staged.frozen_stages(plan.freeze_rate) :] for weight in stage.weights}
    assert result.gradients == 4 * sum(weight.nelement() for weight in training)
    assert result.optimizer == {"adam": 2, "sgd": 1}[plan.optimizer] * result.gradients
    assert result.bytes >= result.gradients + result.optimizer + result.batch + result.activations - 1


@pytest.mark.parametrize("name", DEEP)
def test_segments_lower_the_peak_of_a_deep_network(name: str) -> None:
    staged, trace = traced(name)
    one, two, three = (
        plan_footprint(trace, staged, RetrainingPlan(64, segments=count)).activations for count in (1, 2, 3)
    )
    assert two < 0.8 * one
    assert three < 0.7 * one


def trace_of(kept: list[float]) -> StepTrace:
    nothing = MemoryCurve(np.zeros(0), np.zeros(0))
    return StepTrace(
        tuple(StageTrace(nothing, nothing, nothing, BatchCost(0, index), BatchCost(), False, False) for index in kept),
        BatchCost(),
    )


saved_sizes = st.lists(st.integers(0, 10**7).map(float), min_size=1, max_size=9)


@given(kept=saved_sizes, segments=st.integers(1, 12), data=st.data())
def test_segments_partition_the_trainable_stages_in_order(
    kept: list[float], segments: int, data: st.DataObject
) -> None:
    frozen = data.draw(st.integers(0, len(kept) - 1))
    result = checkpoint_segments(trace_of(kept), frozen, segments)
    assert [at for group in result for at in group] == list(range(frozen, len(kept)))
    assert len(result) == min(segments, len(kept) - frozen)
    assert all(result)


@settings(max_examples=60)
@given(kept=saved_sizes, segments=st.integers(1, 9))
def test_the_largest_segment_is_minimal(kept: list[float], segments: int) -> None:
    count = min(segments, len(kept))
    ways = combinations(range(1, len(kept)), count - 1)
    least = min(max(sum(kept[a:b]) for a, b in pairwise([0, *cuts, len(kept)])) for cuts in ways)
    result = max(sum(kept[at] for at in group) for group in checkpoint_segments(trace_of(kept), 0, segments))
    assert result <= least * (1 + 1e-6) + len(kept)  # each stage counts one extra byte


STEPS = """
import gc, json, sys
import torch
from onefold.retraining.allocator import SPARING, release_free_memory, use_mode
from onefold.retraining.stages import split_into_stages
from onefold.retraining.memory_monitor import ProcessMemory
from onefold.retraining.network_profile import profile_network
from onefold.retraining.training_step import Stepper
from onefold.vocabulary.retraining import RetrainingPlan
from small_networks import ResidualNet, Kind, cross_entropy

use_mode(SPARING)
torch.set_num_threads(1)
kind = Kind(lambda: ResidualNet(32, 6), (3, 32, 32))
network, few = kind.network(), kind.batch(4)
staged = split_into_stages(network, few[:-1])
profile = profile_network(staged, few, cross_entropy)
stepper, memory = Stepper(staged, profile.trace, cross_entropy), ProcessMemory()
for plan in (RetrainingPlan(24), RetrainingPlan(24, freeze_rate=0.5)):
    stepper.optimizer = None
    stepper.drop_gradients()
    gc.collect()
    release_free_memory()
    held = memory.used()
    memory.reset_peak()
    stepper.use_plan(plan)
    for seed in range(2):
        stepper.update((kind.batch(plan.batch_size, seed) for _ in range(1)), plan.batch_size, 1e-3)
    print(json.dumps([profile.added_bytes(plan), memory.peak() - held]))
"""


@pytest.mark.skipif(not reset_high_water(), reason="the high-water mark cannot be reset here")
def test_a_real_process_uses_what_was_predicted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    result = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(result) == 2
    for predicted, measured in result:
        assert measured == pytest.approx(predicted, rel=0.1)
