"""What a search for plans rests on."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.retraining.network_profile import NetworkProfile
from onefold.vocabulary.retraining import PlanEstimate, RetrainingPlan

MARGIN = 0.03  # of the limit, left free


@dataclass(frozen=True)
class PlanningContext:
    """A network, what it may take, and how much of it is left."""

    profile: NetworkProfile
    held: int  # bytes of the process before any plan
    limit: int  # bytes
    left_s: float
    samples: int
    has_batch_norm: bool
    optimizer: str = "adam"

    @property
    def room(self) -> float:
        """What a plan may be predicted to need."""
        return self.limit * (1 - MARGIN)

    def estimate(self, plan: RetrainingPlan) -> PlanEstimate:
        """A plan with what it needs."""
        return self.profile.estimate(plan, self.held)

    def fits(self, plan: RetrainingPlan) -> bool:
        """Whether it stays below the limit."""
        return self.estimate(plan).memory_bytes <= self.room

    @property
    def max_segments(self) -> int:
        """A third of the layers, and no more than there are stretches."""
        staged = self.profile.staged
        return max(1, min(staged.layers // 3, len(staged.stages)))
