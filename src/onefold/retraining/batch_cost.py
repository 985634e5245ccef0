"""Costs that are affine in the batch size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchCost:
    """Bytes or seconds: a fixed part, and a part per sample."""

    fixed: float = 0.0
    per_sample: float = 0.0

    def at(self, batch_size: int) -> float:
        """Return the cost of a batch."""
        return self.fixed + self.per_sample * batch_size

    def __add__(self, other: BatchCost) -> BatchCost:
        return BatchCost(self.fixed + other.fixed, self.per_sample + other.per_sample)


NO_COST = BatchCost()
