"""The inputs of a search for plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onefold.retraining.network_profile import NetworkProfile
from onefold.vocabulary.retraining import MemoryLesson, PlanEstimate, RetrainingPlan

MEMORY_MARGIN = 0.03  # of the limit, left free
LAYERS_PER_SEGMENT = 3  # at least
OPTIMIZERS = ("adam", "sgd")  # the first is the default
AUTO = "auto"  # all of them are searched
Learning = tuple[float, int, float, str]  # freeze rate, effective batch, learning rate, optimizer


def learning(plan: RetrainingPlan) -> Learning:
    """Return what determines how a plan learns, but not its memory."""
    return plan.freeze_rate, plan.effective_batch, plan.lr, plan.optimizer


def remembered_gains(lessons: Iterable[MemoryLesson]) -> dict[Learning, float]:
    """Return the mean gain of each plan in earlier retrainings."""
    gains: dict[Learning, list[float]] = {}
    for lesson in lessons:
        if lesson.gain_per_s is not None:
            gains.setdefault(learning(lesson.plan), []).append(lesson.gain_per_s)
    return {key: sum(values) / len(values) for key, values in gains.items()}


@dataclass(frozen=True)
class PlanningContext:
    """A profiled network with its limits and its data."""

    profile: NetworkProfile
    held_bytes: int  # of the process before any plan
    limit_bytes: int
    left_s: float
    samples: int
    has_batch_norm: bool
    optimizer: str = OPTIMIZERS[0]  # or AUTO
    gains: Mapping[Learning, float] = field(default_factory=dict)  # per second, in earlier retrainings

    @property
    def optimizers(self) -> tuple[str, ...]:
        """Return the optimizers to choose from, the most promising first."""
        return OPTIMIZERS if self.optimizer == AUTO else (self.optimizer,)

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
