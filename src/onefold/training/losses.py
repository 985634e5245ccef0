"""Observe the backward passes of training steps, and compare the losses of reduced with those of full precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Any

import torch

TOLERANCE = 0.02  # relative difference of the mean loss that counts as equal
STANDARD_ERRORS = 3.0  # of the difference that count as chance
DRIFT_WINDOWS = 2  # consecutive windows with a higher loss are a drift


class BackwardPasses:
    """The backward passes of a block: their number, and the values of the scalars that they start from."""

    def __init__(self) -> None:
        self.count = 0
        self._losses: list[torch.Tensor] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the backward passes of the block."""
        original = torch.autograd.backward

        def recording(tensors: Any, *args: Any, **kwargs: Any) -> None:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            self.count += 1
            # The values are read later: reading one from a GPU waits for it.
            self._losses.extend(root.detach().clone() for root in roots if root.numel() == 1)
            original(tensors, *args, **kwargs)

        torch.autograd.backward = recording
        try:
            yield
        finally:
            torch.autograd.backward = original

    @property
    def losses(self) -> list[float]:
        """Return the values of all scalars on which `backward` was called."""
        return [float(loss) for loss in self._losses]


class LossDrift:
    """Notices that the losses of training rise instead of falling."""

    def __init__(self) -> None:
        self._lowest: list[float] = []  # the window with the lowest mean loss
        self._higher = 0  # consecutive windows with higher losses

    def observe(self, losses: list[float]) -> bool:
        """Take the losses of a window; return whether those of the latest windows are higher than once before."""
        if not losses:
            return False
        if self._lowest and not is_no_worse(losses, self._lowest):
            self._higher += 1
            return self._higher >= DRIFT_WINDOWS or not all(map(isfinite, losses))
        self._higher = 0
        if not self._lowest or fmean(losses) < fmean(self._lowest):
            self._lowest = losses
        return False


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
