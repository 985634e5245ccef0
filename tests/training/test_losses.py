from __future__ import annotations

import math

import torch

from onefold.training.losses import are_as_good, seen_losses


def test_losses_are_seen_and_gradients_are_as_ever():
    weight = torch.tensor([2.0], requires_grad=True)
    losses: list[float] = []
    with seen_losses(losses):
        (weight**2).sum().backward()
        torch.autograd.backward((3 * weight).sum())
    assert losses == [4.0, 6.0]
    assert weight.grad is not None
    assert float(weight.grad) == 7.0
    (weight**2).sum().backward()
    assert losses == [4.0, 6.0], "nothing is seen outside"


def test_worse_or_broken_losses_are_told_apart_from_chance():
    exact = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert are_as_good([1.02, 1.08, 0.92], exact)
    assert not are_as_good([1.6, 1.7, 1.65], exact)
    assert not are_as_good([1.0, math.nan], exact)
    assert not are_as_good([], exact)
    assert are_as_good([1.0], [])
