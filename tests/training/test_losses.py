"""Training losses are recorded, and those of reduced precision compared with exact ones."""

from __future__ import annotations

import math

import torch

from onefold.training.losses import is_no_worse, record_losses


def test_losses_are_recorded_and_gradients_are_unchanged() -> None:
    weight = torch.tensor([2.0], requires_grad=True)
    losses: list[float] = []
    with record_losses(losses):
        (weight**2).sum().backward()
        torch.autograd.backward((3 * weight).sum())
    assert losses == [4.0, 6.0]
    assert weight.grad is not None
    assert float(weight.grad) == 7.0
    (weight**2).sum().backward()
    assert losses == [4.0, 6.0], "nothing is recorded outside the block"


def test_higher_or_infinite_losses_are_distinguished_from_noise() -> None:
    exact = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert is_no_worse([1.02, 1.08, 0.92], exact)
    assert not is_no_worse([1.6, 1.7, 1.65], exact)
    assert not is_no_worse([1.0, math.nan], exact)
    assert not is_no_worse([], exact)
    assert is_no_worse([1.0], [])
