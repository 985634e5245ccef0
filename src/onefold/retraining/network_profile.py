"""What is known of a network before any plan is tried: memory and time of every plan, and how much to trust it.

Tensors tell nearly all of a plan's memory, not all: libraries take some for themselves. What plans of this network
really took, in this retraining or in earlier ones on this machine, corrects the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from onefold.retraining.memory_model import StepMemory, checkpoint_segments, step_memory
from onefold.retraining.memory_trace import Loss, StepTrace, trace_step
from onefold.retraining.stage_times import StageTime, Took, time_step
from onefold.retraining.stages import StagedNetwork
from onefold.vocabulary.retraining import LayerCost, MemoryLesson, PlanEstimate, RetrainingPlan

OVERHEAD = 8_000_000  # bytes that a first step takes besides its tensors, before anything was measured
MOST_CORRECTION = 2.0
MORE_THAN_THERE_IS = 10**15


@dataclass
class NetworkProfile:
    """Predicts; learns from what it is told was measured."""

    staged: StagedNetwork
    trace: StepTrace
    times: tuple[StageTime, ...]
    lessons: list[MemoryLesson] = field(default_factory=list)
    too_much: float = float("inf")  # tensors of a plan, in bytes: more has been seen not to fit
    _steps: dict[tuple[int, int], tuple[StepMemory, Took]] = field(default_factory=dict)  # by frozen links and segments

    def tensors(self, plan: RetrainingPlan) -> int:
        """What a plan's tensors take, above the process as it is."""
        return self._step(plan)[0].of(plan).bytes

    def extra(self, plan: RetrainingPlan) -> int:
        """What a plan takes above the process as it is, corrected."""
        tensors = self.tensors(plan)
        if tensors > self.too_much:
            return MORE_THAN_THERE_IS
        return round((tensors + OVERHEAD) * self.correction(plan))

    def correction(self, plan: RetrainingPlan) -> float:
        """Measured over predicted of the plans that are most like this one; 1 where nothing was measured.

        That another plan took less than was predicted is no reason to think so of this one.
        """
        if not self.lessons:
            return 1.0
        weights, ratios = [], []
        for lesson in self.lessons:
            ratio, distance = lesson.measured_bytes / (lesson.predicted_bytes + OVERHEAD), _distance(plan, lesson.plan)
            weights.append(1.0 / (0.1 + distance) ** 2)
            ratios.append(min(max(ratio, 1.0 if distance else 1 / MOST_CORRECTION), MOST_CORRECTION))
        return float(np.average(ratios, weights=weights))

    def batch_s(self, plan: RetrainingPlan) -> float:
        """One batch forward and backward."""
        return self._step(plan)[1].of(plan.batch_size)

    def _step(self, plan: RetrainingPlan) -> tuple[StepMemory, Took]:
        """Memory and time of a step for any batch size."""
        frozen = self.staged.frozen_stages(plan.freeze_rate)
        key = (frozen, plan.segments)
        if key not in self._steps:
            groups = checkpoint_segments(self.trace, frozen, plan.segments)
            again = [at for group in groups[:-1] for at in group]
            parts = [one.forward for one in self.times] + [one.backward for one in self.times[frozen:]]
            parts += [self.times[at].forward for at in again]
            took = Took(sum(one.fixed for one in parts), sum(one.per_sample for one in parts))
            self._steps[key] = (step_memory(self.trace, self.staged, frozen, plan.segments), took)
        return self._steps[key]

    def estimate(self, plan: RetrainingPlan, held: int) -> PlanEstimate:
        """A plan with what it needs, in a process that holds so much before."""
        return PlanEstimate(plan, held + self.extra(plan), self.batch_s(plan) * plan.accumulation)

    def scoring_bytes(self, batch_size: int) -> int:
        """What answering a batch takes, above the process as it is."""
        return round(self.trace.answering.peak(batch_size) + self.trace.batch.of(batch_size)) + OVERHEAD

    def layers(self) -> tuple[LayerCost, ...]:
        """Each stretch with its costs."""
        return tuple(
            LayerCost(
                stage.name,
                sum(one.nelement() * one.element_size() for one in stage.weights),
                trace.saved.per_sample,
                times.forward.per_sample,
                times.backward.per_sample,
            )
            for stage, trace, times in zip(self.staged.stages, self.trace.stages, self.times)
        )


def profile_network(
    staged: StagedNetwork, batch: tuple[Tensor, ...], loss: Loss, lessons: Iterable[MemoryLesson] = ()
) -> NetworkProfile:
    """Profiles a network with a few samples of the new data, the targets last."""
    return NetworkProfile(staged, trace_step(staged, batch, loss), time_step(staged, batch, loss), list(lessons))


def _distance(one: RetrainingPlan, other: RetrainingPlan) -> float:
    """How unlike two plans are in what decides their memory."""
    return float(
        abs(np.log2(one.batch_size / other.batch_size))
        + 2 * abs(one.freeze_rate - other.freeze_rate)
        + abs(np.log2(one.segments / other.segments))
    )


def least(profile: NetworkProfile, plans: Sequence[RetrainingPlan], held: int) -> PlanEstimate:
    """The plan that needs the least memory."""
    return min((profile.estimate(plan, held) for plan in plans), key=lambda one: one.memory_bytes)
