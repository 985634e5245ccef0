"""Predicted memory and time of every plan of a network.

Tensors account for most of a plan's memory, not all: libraries allocate some for themselves. What plans of this network
were measured to need, now or in earlier retrainings on this machine, corrects the prediction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from onefold.retraining.batch_cost import NO_COST, BatchCost
from onefold.retraining.memory_model import StepMemory, checkpoint_segments, step_memory
from onefold.retraining.memory_trace import LossFunction, StepTrace, trace_step
from onefold.retraining.stage_times import StageTime, time_stages
from onefold.retraining.stages import StagedNetwork
from onefold.retraining.time_window import Clock
from onefold.vocabulary.retraining import LayerCost, MemoryLesson, PlanEstimate, RetrainingPlan

# Of a step besides its tensors, but at most as much as these: small blocks, and the code that oneDNN generates.
OVERHEAD_BYTES, CONVOLUTION_BYTES = 2_000_000, 120_000  # and for each convolution
INFERENCE_OVERHEAD_BYTES = 8_000_000  # fragments included, since malloc maps large blocks only
MAX_CORRECTION = 2.0
INFEASIBLE_BYTES = 10**15


@dataclass
class NetworkProfile:
    """Predict the cost of plans from a trace, stage times and memory lessons."""

    staged: StagedNetwork
    trace: StepTrace
    times: tuple[StageTime, ...]
    lessons: list[MemoryLesson] = field(default_factory=list)
    infeasible_tensor_bytes: float = float("inf")  # plans with more tensor bytes were seen to run out of memory
    _steps: dict[tuple[int, int], tuple[StepMemory, BatchCost]] = field(default_factory=dict)

    def tensor_bytes(self, plan: RetrainingPlan) -> int:
        """Return the bytes of a plan's tensors, on top of what the process holds."""
        return self._step(plan)[0].footprint(plan).bytes

    def added_bytes(self, plan: RetrainingPlan) -> int:
        """Return the corrected bytes that a plan adds to the process."""
        tensor_bytes = self.tensor_bytes(plan)
        if tensor_bytes > self.infeasible_tensor_bytes:
            return INFEASIBLE_BYTES
        return round(self.with_overhead(tensor_bytes) * self.correction(plan))

    def with_overhead(self, tensor_bytes: int) -> int:
        """Return the bytes that a step adds to the process, before any is measured."""
        return tensor_bytes + min(tensor_bytes, self._overhead_bytes)

    @cached_property
    def _overhead_bytes(self) -> int:
        modules = self.staged.network.modules()
        convolutions = sum(isinstance(module, nn.modules.conv._ConvNd) for module in modules)
        return OVERHEAD_BYTES + CONVOLUTION_BYTES * convolutions

    def correction(self, plan: RetrainingPlan) -> float:
        """Return measured over predicted memory of the most similar plans; 1 without lessons.

        Another plan that needed less than predicted does not lower the prediction for this one.
        """
        if not self.lessons:
            return 1.0
        weights, ratios = [], []
        for lesson in self.lessons:
            ratio = lesson.measured_bytes / self.with_overhead(lesson.predicted_bytes)
            distance = _distance(plan, lesson.plan)
            weights.append(1.0 / (0.1 + distance) ** 2)
            ratios.append(min(max(ratio, 1.0 if distance else 1 / MAX_CORRECTION), MAX_CORRECTION))
        return float(np.average(ratios, weights=weights))

    def batch_s(self, plan: RetrainingPlan) -> float:
        """Return the seconds of one batch, forward and backward."""
        return self._step(plan)[1].at(plan.batch_size)

    def _step(self, plan: RetrainingPlan) -> tuple[StepMemory, BatchCost]:
        """Return memory and time of a step for any batch size, cached by frozen stages and segments."""
        frozen = self.staged.frozen_stages(plan.freeze_rate)
        key = (frozen, plan.segments)
        if key not in self._steps:
            segments = checkpoint_segments(self.trace, frozen, plan.segments)
            recomputed = [index for segment in segments[:-1] for index in segment]
            parts = [stage.forward for stage in self.times] + [stage.backward for stage in self.times[frozen:]]
            parts += [self.times[index].forward for index in recomputed]
            memory = step_memory(self.trace, self.staged, frozen, plan.segments)
            self._steps[key] = (memory, sum(parts, NO_COST))
        return self._steps[key]

    def estimate(self, plan: RetrainingPlan, held_bytes: int) -> PlanEstimate:
        """Return the predicted cost of a plan in a process that already holds this much memory."""
        return PlanEstimate(plan, held_bytes + self.added_bytes(plan), self.batch_s(plan) * plan.accumulation)

    def inference_bytes(self, batch_size: int) -> int:
        """Return the bytes that inference of a batch adds to the process."""
        return round(self.trace.inference.peak(batch_size) + self.trace.batch.at(batch_size)) + INFERENCE_OVERHEAD_BYTES

    def layers(self) -> tuple[LayerCost, ...]:
        """Return the cost of each stage."""
        return tuple(
            LayerCost(
                stage.name,
                sum(weight.nelement() * weight.element_size() for weight in stage.weights),
                trace.saved.per_sample,
                times.forward.per_sample,
                times.backward.per_sample,
            )
            for stage, trace, times in zip(self.staged.stages, self.trace.stages, self.times)
        )

    def cheapest(self, plans: Sequence[RetrainingPlan], held_bytes: int) -> PlanEstimate:
        """Return the plan that needs the least memory."""
        return min((self.estimate(plan, held_bytes) for plan in plans), key=lambda estimate: estimate.memory_bytes)


def profile_network(
    staged: StagedNetwork,
    batch: tuple[Tensor, ...],
    loss: LossFunction,
    lessons: Iterable[MemoryLesson] = (),
    clock: Clock = time.perf_counter,
) -> NetworkProfile:
    """Profile a network with a few samples of the new data, targets last."""
    trace = trace_step(staged, batch, loss)
    return NetworkProfile(staged, trace, time_stages(staged, batch, loss, clock=clock), list(lessons))


def _distance(first: RetrainingPlan, other: RetrainingPlan) -> float:
    """Return how different two plans are in the settings that determine their memory."""
    return float(
        abs(np.log2(first.batch_size / other.batch_size))
        + 2 * abs(first.freeze_rate - other.freeze_rate)
        + abs(np.log2(first.segments / other.segments))
    )
