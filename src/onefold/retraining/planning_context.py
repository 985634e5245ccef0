"""The inputs of a search for plans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onefold.retraining.network_profile import NetworkProfile
from onefold.retraining.options import AUTO, OPTIMIZERS
from onefold.vocabulary.retraining import EFFECTIVE_BATCH, MemoryLesson, PlanEstimate, RetrainingPlan

MEMORY_MARGIN = 0.03  # share of the limit that is left free
MIN_LAYERS_PER_SEGMENT = 3
LR_STEP = 3.0  # factor between the learning rates that are tried
BASE_LR = {"adam": 1e-3, "sgd": 1e-2}  # at the full effective batch
LearningKey = tuple[float, int, str]  # freeze rate, steps of the learning rate above the base, optimizer


def learning_key(plan: RetrainingPlan) -> LearningKey:
    """Return the settings of a plan that determine its gain: freeze rate, relative learning rate and optimizer.

    They are comparable between windows of different lengths; settings that only affect memory are left out.
    """
    steps = round(math.log(plan.lr / base_lr(plan.optimizer, plan.effective_batch), LR_STEP))
    return plan.freeze_rate, steps, plan.optimizer


def base_lr(optimizer: str, effective_batch: int) -> float:
    """Return the usual learning rate, scaled with the effective batch: by its root for Adam, linearly for SGD."""
    share = effective_batch / EFFECTIVE_BATCH
    return BASE_LR[optimizer] * (share**0.5 if optimizer == "adam" else share)


def remembered_gains(lessons: Iterable[MemoryLesson], priors: Iterable[MemoryLesson] = ()) -> dict[LearningKey, float]:
    """Return the gain of each plan in earlier retrainings, relative to the best one.

    `priors` are those of other machines; they count for plans that have no gain here.
    """
    return {**_mean_gains(priors), **_mean_gains(lessons)}


def _mean_gains(lessons: Iterable[MemoryLesson]) -> dict[LearningKey, float]:
    gains: dict[LearningKey, list[float]] = {}
    for lesson in lessons:
        if lesson.gain_per_s is not None:
            gains.setdefault(learning_key(lesson.plan), []).append(lesson.gain_per_s)
    means = {key: sum(values) / len(values) for key, values in gains.items()}
    best = max(means.values(), default=0.0)
    return {key: mean / best for key, mean in means.items()} if best > 0 else {}


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
    gains: Mapping[LearningKey, float] = field(default_factory=dict)  # in earlier retrainings, relative to the best
    max_freeze_rate: float = 1.0  # that leaves something to train
    contention: float = 1.0  # how many times longer than profiled an update takes on the machine, as busy as it is

    @property
    def idle_left_s(self) -> float:
        """The seconds that would be left for as many updates on an idle machine, where stages are profiled."""
        return self.left_s / self.contention

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
        return plan.freeze_rate <= self.max_freeze_rate and self.estimate(plan).memory_bytes <= self.usable_bytes

    @property
    def max_segments(self) -> int:
        """Return the largest number of checkpoint segments: a third of the layers, at most one per stage."""
        staged = self.profile.staged
        return max(1, min(staged.layers // MIN_LAYERS_PER_SEGMENT, len(staged.stages)))
