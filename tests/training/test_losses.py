"""Training losses are recorded, and those of reduced precision compared with exact ones."""

from __future__ import annotations

import math

import torch

from onefold.training.losses import BackwardPasses, LossDrift, is_no_worse


def test_losses_are_recorded_and_gradients_are_unchanged() -> None:
    weight = torch.tensor([2.0], requires_grad=True)
    passes = BackwardPasses()
    with passes.recorded():
        (weight**2).sum().backward()
        torch.autograd.backward((3 * weight).sum())
    assert passes.losses == [4.0, 6.0]
    assert weight.grad is not None
    assert float(weight.grad) == 7.0
    (weight**2).sum().backward()
    assert passes.count == 2, "nothing is recorded outside the block"


def test_higher_or_infinite_losses_are_distinguished_from_noise() -> None:
    exact = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert is_no_worse([1.02, 1.08, 0.92], exact)
    assert not is_no_worse([1.6, 1.7, 1.65], exact)
    assert not is_no_worse([1.0, math.nan], exact)
    assert not is_no_worse([], exact)
    assert is_no_worse([1.0], [])


def test_a_loss_that_rises_in_two_windows_is_a_drift() -> None:
    drift = LossDrift()
    assert not any(drift.observe([start, start * 1.01]) for start in (1.0, 0.5, 0.2))
    assert not drift.observe([0.5, 0.5])
    assert drift.observe([0.5, 0.6])
    drift = LossDrift()
    observed = [drift.observe([loss, loss * 1.01]) for loss in (0.2, 0.5, 0.2, 0.5, 0.2)]
    assert not any(observed), "a window with a high loss is no drift"
    assert drift.observe([math.nan])
