"""Observe the training losses, and compare those of reduced precision with those of full precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Any

import torch

TOLERANCE = 0.02  # relative difference of the mean loss that counts as equal
STANDARD_ERRORS = 3.0  # of the difference that count as chance


@contextmanager
def record_losses(losses: list[float]) -> Iterator[None]:
    """Append the value of every scalar on which `backward` is called within the block."""
    original = torch.autograd.backward

    def recording(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        losses.extend(float(root.detach()) for root in roots if root.numel() == 1)
        original(tensors, *args, **kwargs)

    torch.autograd.backward = recording
    try:
        yield
    finally:
        torch.autograd.backward = original


def is_no_worse(reduced: list[float], exact: list[float]) -> bool:
    """Return whether losses with reduced precision are at most those with full precision, up to chance."""
    if not reduced or not all(map(isfinite, reduced)):
        return False
    if not exact:
        return True
    chance = STANDARD_ERRORS * sqrt(_variance_of_mean(reduced) + _variance_of_mean(exact))
    return fmean(reduced) <= fmean(exact) + TOLERANCE * abs(fmean(exact)) + chance


def _variance_of_mean(values: list[float]) -> float:
    return stdev(values) ** 2 / len(values) if len(values) > 1 else 0.0
