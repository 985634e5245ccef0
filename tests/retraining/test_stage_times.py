"""Timing of stages: complete, and without side effects."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_networks import KINDS, cross_entropy

from onefold.retraining.batch_cost import BatchCost
from onefold.retraining.stage_times import time_stages
from onefold.retraining.stages import split_into_stages


@pytest.mark.parametrize("name", KINDS)
def test_every_stage_and_the_loss_are_timed(name: str) -> None:
    kind = KINDS[name]
    staged = split_into_stages(kind.network(), kind.batch(4)[:-1])
    times = time_stages(staged, kind.batch(4), cross_entropy, repeats=1)
    assert len(times) == len(staged.stages) + 1
    for time_s in times:
        for took in (time_s.forward, time_s.backward):
            assert took.fixed >= 0
            assert took.per_sample > 0
            assert math.isfinite(took.at(256))


def test_timing_preserves_the_state_of_the_network() -> None:
    kind = KINDS["inverted"]
    network = kind.network().eval()
    network.features.train()
    staged = split_into_stages(kind.network(), kind.batch(4)[:-1])
    staged = type(staged)(network, split_into_stages(copy.deepcopy(network), kind.batch(4)[:-1]).stages)
    first, *others = network.parameters()
    first.requires_grad_(False)
    others[0].grad = torch.ones_like(others[0])
    state, random = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    modes = [module.training for module in network.modules()]
    time_stages(staged, kind.batch(4), cross_entropy, repeats=1)
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in state.items())
    assert torch.equal(random, torch.get_rng_state())
    assert [module.training for module in network.modules()] == modes
    assert [weight.requires_grad for weight in network.parameters()] == [False, *(True for _ in others)]
    assert torch.equal(others[0].grad, torch.ones_like(others[0]))
    assert all(weight.grad is None for weight in (first, *others[1:]))


@pytest.mark.parametrize("count", [1, 3, 20])
def test_any_number_of_samples_works(count: int) -> None:
    kind = KINDS["residual"]
    staged = split_into_stages(kind.network(), kind.batch(4)[:-1])
    assert len(time_stages(staged, kind.batch(count), cross_entropy, repeats=1)) == len(staged.stages) + 1


@given(fixed=st.floats(0, 10), per_sample=st.floats(1e-9, 1), size=st.integers(1, 256))
def test_a_larger_batch_takes_longer_but_less_per_sample(fixed: float, per_sample: float, size: int) -> None:
    took = BatchCost(fixed, per_sample)
    assert took.at(size) < took.at(2 * size) <= 2 * took.at(size) * (1 + 1e-12)
