"""The inputs of a search for plans."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.retraining.network_profile import NetworkProfile
from onefold.vocabulary.retraining import PlanEstimate, RetrainingPlan

MEMORY_MARGIN = 0.03  # of the limit, left free
LAYERS_PER_SEGMENT = 3  # at least


@dataclass(frozen=True)
class PlanningContext:
    """A profiled network with its limits and its data."""

    profile: NetworkProfile
    held_bytes: int  # of the process before any plan
    limit_bytes: int
    left_s: float
    samples: int
    has_batch_norm: bool
    optimizer: str = "adam"

    @property
    def usable_bytes(self) -> float:
        """Return the memory that a plan may be predicted to need."""
        return self.limit_bytes * (1 - MEMORY_MARGIN)

    def estimate(self, plan: RetrainingPlan) -> PlanEstimate:
        """Return the predicted cost of a plan."""
        return self.profile.estimate(plan, self.held_bytes)

    def fits(self, plan: RetrainingPlan) -> bool:
        """Return whether the plan is predicted to stay below the limit."""
        return self.estimate(plan).memory_bytes <= self.usable_bytes

    @property
    def max_segments(self) -> int:
        """Return the largest number of checkpoint segments: a third of the layers, at most one per stage."""
        staged = self.profile.staged
        return max(1, min(staged.layers // LAYERS_PER_SEGMENT, len(staged.stages)))
