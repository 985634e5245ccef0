"""LeanOptimizer makes the steps of torch.optim."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onefold.retraining.lean_optimizer import LeanOptimizer

STEPS = 20


def weights_of(shapes: list[tuple[int, ...]], seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def torch_optimizer(kind: str, weights: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr) if kind == "adam" else torch.optim.SGD(weights, lr, momentum=0.9)


def pull(weights: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    """Accumulate random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        result = scale * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        weight.grad = result if weight.grad is None else weight.grad + result


shapes = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@settings(max_examples=15)
@given(shapes=shapes, seed=st.integers(0, 10**6), lr=st.floats(1e-5, 1e-1), scale=st.floats(1e-6, 1e3))
def test_twenty_steps_match_torch(kind: str, shapes: list[tuple[int, ...]], seed: int, lr: float, scale: float) -> None:
    mine, theirs = weights_of(shapes, seed), weights_of(shapes, seed)
    ours, optimizer = LeanOptimizer(kind), torch_optimizer(kind, theirs, lr)
    for step in range(STEPS):
        pull(mine, seed + step, scale)
        ours.step(mine, lr)
        optimizer.zero_grad()
        pull(theirs, seed + step, scale)
        optimizer.step()
    for item, other in zip(mine, theirs):
        torch.testing.assert_close(item, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_gradients_are_zeroed_and_weights_without_one_are_unchanged(kind: str) -> None:
    one, other = weights_of([(3,), (3,)], 0)
    before = other.detach().clone()
    pull([one], 1)
    gradient = one.grad
    LeanOptimizer(kind).step([one, other], 1e-2)
    assert one.grad is gradient  # the memory is kept for the next batch
    assert not one.grad.any()
    assert other.grad is None
    assert torch.equal(other, before)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_reset_starts_afresh(kind: str) -> None:
    (mine,), (fresh,) = weights_of([(5,)], 3), weights_of([(5,)], 4)
    ours = LeanOptimizer(kind)
    for step in range(3):
        pull([mine], step)
        ours.step([mine], 1e-2)
    ours.reset()
    mine.data.copy_(fresh)
    for weight, by in ((mine, ours), (fresh, LeanOptimizer(kind))):
        pull([weight], 9)
        by.step([weight], 1e-2)
    assert torch.equal(mine, fresh)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_retain_drops_the_state_of_other_parameters(kind: str) -> None:
    stay, go = weights_of([(5,), (5,)], 3)
    twins = weights_of([(5,), (5,)], 3)
    ours, other = LeanOptimizer(kind), LeanOptimizer(kind)
    for by, (item, two) in ((ours, (stay, go)), (other, twins)):
        pull([item, two], 1)
        by.step([item, two], 1e-2)
    ours.retain([stay])
    assert set(ours._state) == {stay}
    assert set(ours._steps) <= {stay}
    for by, (item, two) in ((ours, (stay, go)), (other, twins)):
        pull([item, two], 2)
        by.step([item, two], 1e-2)
    assert torch.equal(stay, twins[0])
    assert not torch.equal(go, twins[1])


def test_the_learning_rate_may_change_between_steps() -> None:
    (mine,), (theirs,) = weights_of([(5,)], 3), weights_of([(5,)], 3)
    ours, optimizer = LeanOptimizer("adam"), torch_optimizer("adam", [theirs], 1.0)
    for step, lr in enumerate((1e-2, 1e-3, 3e-3)):
        pull([mine], step)
        ours.step([mine], lr)
        optimizer.zero_grad()
        pull([theirs], step)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    torch.testing.assert_close(mine, theirs)
