"""Prediction of a plan's peak memory from a traced step, on top of what the process holds already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.retraining.batch_cost import NO_COST, BatchCost
from onefold.retraining.memory_trace import MemoryCurve, StageTrace, StepTrace
from onefold.retraining.stages import StagedNetwork
from onefold.vocabulary.retraining import RetrainingPlan

OPTIMIZER_STATES = {"adam": 2, "sgd": 1}  # tensors per weight; for SGD its momentum
OPTIMIZER_COPIES = {"adam": 1, "sgd": 0}  # of one weight at a time, while it is updated: the denominator
BISECTIONS = 30


@dataclass(frozen=True)
class MemoryFootprint:
    """The bytes that a plan adds to the process. Weights are not included: the network exists before."""

    gradients: float
    optimizer: float
    batch: float
    activations: float  # peak, with activation gradients
    scratch: float  # of the optimizer step

    @property
    def bytes(self) -> int:
        """Return the peak of all parts together."""
        return round(self.gradients + self.optimizer + self.batch + max(self.activations, self.scratch))


@dataclass(frozen=True)
class StepMemory:
    """The memory of a step with given frozen stages and segments, for any batch size and optimizer."""

    curve: MemoryCurve
    batch: BatchCost
    trainable_bytes: float  # of weights that are not frozen
    largest_weight_bytes: float

    def footprint(self, plan: RetrainingPlan) -> MemoryFootprint:
        """Return the footprint at the plan's batch size."""
        return MemoryFootprint(
            gradients=self.trainable_bytes,
            optimizer=self.trainable_bytes * OPTIMIZER_STATES[plan.optimizer],
            batch=self.batch.at(plan.batch_size),
            activations=self.curve.peak(plan.batch_size),
            scratch=OPTIMIZER_COPIES[plan.optimizer] * self.largest_weight_bytes,
        )


def step_memory(trace: StepTrace, staged: StagedNetwork, frozen: int, segments: int) -> StepMemory:
    """Return the memory of a step with the first `frozen` stages frozen."""
    trainable = (weight for stage in staged.stages[frozen:] for weight in stage.weights)
    sizes = {id(weight): weight.nelement() * weight.element_size() for weight in trainable}
    curve = step_curve(trace.stages, frozen, checkpoint_segments(trace, frozen, segments))
    return StepMemory(curve, trace.batch, float(sum(sizes.values())), float(max(sizes.values(), default=0)))


def checkpoint_segments(trace: StepTrace, frozen: int, count: int) -> list[range]:
    """Group the trainable stages into `count` consecutive segments, minimizing the largest saved activations."""
    trainable = range(frozen, len(trace.stages))
    count = max(1, min(count, len(trainable)))
    saved = [trace.stages[index].saved.per_sample + 1.0 for index in trainable]
    low, high = max(saved), sum(saved)
    for _ in range(BISECTIONS):  # for the smallest capacity that `count` segments suffice for
        middle = (low + high) / 2
        low, high = (low, middle) if len(_pack(saved, middle)) <= count else (middle, high)
    segments = _pack(saved, high)
    while len(segments) < count:  # split the longest ones further
        longest = max(range(len(segments)), key=lambda index: len(segments[index]))
        start, stop = segments[longest].start, segments[longest].stop
        half = start + (stop - start) // 2
        segments[longest : longest + 1] = [range(start, half), range(half, stop)]
    return [range(segment.start + frozen, segment.stop + frozen) for segment in segments]


def _pack(saved: Sequence[float], capacity: float) -> list[range]:
    """Group consecutive stages greedily, each group up to the capacity."""
    groups, start, filled = [], 0, 0.0
    for index, size in enumerate(saved):
        if index > start and filled + size > capacity * (1 + 1e-9):
            groups.append(range(start, index))
            start, filled = index, 0.0
        filled += size
    return [*groups, range(start, len(saved))]


def step_curve(stages: Sequence[StageTrace], frozen: int, segments: Sequence[range]) -> MemoryCurve:
    """Return the live bytes over a whole step: frozen stages, checkpointed forward, recomputation and backward."""
    curves: list[MemoryCurve] = []
    value = NO_COST
    for stage in stages[:frozen]:
        curves.append(stage.forward.above(value))
        value = stage.output
    boundaries = [value]  # the input of each segment, which is kept until its backward pass is done
    for segment in segments[:-1]:  # forward, keeping the boundaries alone
        held, value = _total(boundaries), NO_COST
        for index in segment:
            curves.append(stages[index].forward.above(held + value))
            value = stages[index].output
        boundaries.append(value)
    for position in reversed(range(len(segments))):  # recomputation and backward
        held = _total(boundaries[: position + 1])
        if position < len(segments) - 1:
            held += stages[segments[position][-1]].output  # the incoming gradient
        forward, backward = _training_curves(stages, segments[position])
        curves += [curve.above(held) for curve in forward]
        if len(segments) == 1 and not stages[segments[0][0]].keeps_input:
            held = NO_COST  # the input has been freed by then
        curves += [curve.above(held) for curve in backward]
    return MemoryCurve(
        np.concatenate([curve.fixed for curve in curves]), np.concatenate([curve.per_sample for curve in curves])
    )


def _training_curves(stages: Sequence[StageTrace], segment: range) -> tuple[list[MemoryCurve], list[MemoryCurve]]:
    """Return the curves of a segment's forward with saved activations, and of its backward."""
    forward, saved_before = [], []
    saved, value = NO_COST, NO_COST
    for index in segment:
        stage = stages[index]
        saved_before.append(saved)
        is_counted = index == segment[0] or _is_output_saved(stages, index - 1, segment)
        forward.append(stage.training.above(saved if is_counted else saved + value))
        saved += stage.saved
        if not stage.keeps_output and _is_output_saved(stages, index, segment):
            saved += stage.output
        value = stage.output
    return forward, [stages[index].backward.above(saved_before[index - segment[0]]) for index in segment]


def _is_output_saved(stages: Sequence[StageTrace], index: int, segment: range) -> bool:
    """Return whether a stage's output stays for the backward pass of this stage or of the next one."""
    return stages[index].keeps_output or (index + 1 in segment and stages[index + 1].keeps_input)


def _total(costs: Sequence[BatchCost]) -> BatchCost:
    return sum(costs, NO_COST)
