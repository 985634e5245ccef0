"""Adam and SGD are torch's, step by step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onefold.retraining.optimizers import LeanOptimizer

STEPS = 20


def weights_of(shapes: list[tuple[int, ...]], seed: int) -> list[nn.Parameter]:
    chance = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=chance, dtype=torch.float64)) for shape in shapes]


def torchs(kind: str, weights: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr) if kind == "adam" else torch.optim.SGD(weights, lr, momentum=0.9)


def pull(weights: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    """Gradients out of a seed, added to what is there."""
    chance = torch.Generator().manual_seed(seed)
    for weight in weights:
        found = scale * torch.randn(weight.shape, generator=chance, dtype=weight.dtype)
        weight.grad = found if weight.grad is None else weight.grad + found


shapes = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@settings(max_examples=15)
@given(shapes=shapes, seed=st.integers(0, 10**6), lr=st.floats(1e-5, 1e-1), scale=st.floats(1e-6, 1e3))
def test_twenty_updates_are_those_of_torch(
    kind: str, shapes: list[tuple[int, ...]], seed: int, lr: float, scale: float
) -> None:
    mine, theirs = weights_of(shapes, seed), weights_of(shapes, seed)
    updates, optimizer = LeanOptimizer(kind), torchs(kind, theirs, lr)
    for step in range(STEPS):
        pull(mine, seed + step, scale)
        updates.apply(mine, lr)
        optimizer.zero_grad()
        pull(theirs, seed + step, scale)
        optimizer.step()
    for one, other in zip(mine, theirs):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_gradients_are_back_at_zero_and_weights_without_one_stay(kind: str) -> None:
    one, other = weights_of([(3,), (3,)], 0)
    before = other.detach().clone()
    pull([one], 1)
    gradient = one.grad
    LeanOptimizer(kind).apply([one, other], 1e-2)
    assert one.grad is gradient  # the memory is kept for the next batch
    assert not one.grad.any()
    assert other.grad is None
    assert torch.equal(other, before)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_what_is_forgotten_begins_anew(kind: str) -> None:
    (mine,), (fresh,) = weights_of([(5,)], 3), weights_of([(5,)], 4)
    updates = LeanOptimizer(kind)
    for step in range(3):
        pull([mine], step)
        updates.apply([mine], 1e-2)
    updates.forget()
    mine.data.copy_(fresh)
    for weight, by in ((mine, updates), (fresh, LeanOptimizer(kind))):
        pull([weight], 9)
        by.apply([weight], 1e-2)
    assert torch.equal(mine, fresh)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_only_what_is_to_be_kept_is_kept(kind: str) -> None:
    stay, go = weights_of([(5,), (5,)], 3)
    twins = weights_of([(5,), (5,)], 3)
    updates, other = LeanOptimizer(kind), LeanOptimizer(kind)
    for by, (one, two) in ((updates, (stay, go)), (other, twins)):
        pull([one, two], 1)
        by.apply([one, two], 1e-2)
    updates.keep_only([stay])
    assert set(updates._memory) == {stay}
    assert set(updates._steps) <= {stay}
    for by, (one, two) in ((updates, (stay, go)), (other, twins)):
        pull([one, two], 2)
        by.apply([one, two], 1e-2)
    assert torch.equal(stay, twins[0])
    assert not torch.equal(go, twins[1])


def test_a_learning_rate_may_change_from_update_to_update() -> None:
    (mine,), (theirs,) = weights_of([(5,)], 3), weights_of([(5,)], 3)
    updates, optimizer = LeanOptimizer("adam"), torchs("adam", [theirs], 1.0)
    for step, lr in enumerate((1e-2, 1e-3, 3e-3)):
        pull([mine], step)
        updates.apply([mine], lr)
        optimizer.zero_grad()
        pull([theirs], step)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    torch.testing.assert_close(mine, theirs)
