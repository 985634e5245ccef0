"""What a search for plans rests on."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.retraining.profile import Profile
from onefold.vocabulary.plans import Expected, Plan

MARGIN = 0.03  # of the limit, left free


@dataclass(frozen=True)
class Situation:
    """A network, what it may take, and how much of it is left."""

    profile: Profile
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

    def expected(self, plan: Plan) -> Expected:
        """A plan with what it needs."""
        return self.profile.expected(plan, self.held)

    def fits(self, plan: Plan) -> bool:
        """Whether it stays below the limit."""
        return self.expected(plan).memory_bytes <= self.room

    @property
    def most_segments(self) -> int:
        """A third of the layers, and no more than there are stretches."""
        chain = self.profile.chain
        return max(1, min(chain.layers // 3, len(chain.links)))
