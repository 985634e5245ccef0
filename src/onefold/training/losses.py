"""The losses that a training goes by, seen from outside: whatever backward is called on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Any

import torch

SLACK = 0.02  # of the exact loss: what the batches' own differences may explain
ERRORS = 3.0  # standard errors


@contextmanager
def seen_losses(losses: list[float]) -> Iterator[None]:
    """Adds the value of every single number that backward is called on in the block."""
    original = torch.autograd.backward

    def watched(tensors: Any, *args: Any, **kwargs: Any) -> None:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        losses.extend(float(root.detach()) for root in roots if root.numel() == 1)
        original(tensors, *args, **kwargs)

    torch.autograd.backward = watched
    try:
        yield
    finally:
        torch.autograd.backward = original


def are_as_good(reduced: list[float], exact: list[float]) -> bool:
    """Whether losses with reduced precision are no worse than exact ones of other batches, chance allowed for."""
    if not reduced or not all(map(isfinite, reduced)):
        return False
    if not exact:
        return True
    room = SLACK * abs(fmean(exact)) + ERRORS * sqrt(_variance_of_mean(reduced) + _variance_of_mean(exact))
    return fmean(reduced) <= fmean(exact) + room


def _variance_of_mean(values: list[float]) -> float:
    return stdev(values) ** 2 / len(values) if len(values) > 1 else 0.0
