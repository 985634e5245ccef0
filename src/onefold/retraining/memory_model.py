"""A traced step and a plan -> the memory at its peak, above what the process has before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.retraining.memory_trace import Amount, MemoryCurve, StageTrace, StepTrace
from onefold.retraining.stages import StagedNetwork
from onefold.vocabulary.retraining import RetrainingPlan

STATES = {"adam": 2, "sgd": 1}  # what an optimizer remembers of each weight; sgd: its momentum


@dataclass(frozen=True)
class MemoryFootprint:
    """Where the memory of a plan goes. Weights are not in it: the network is there before."""

    gradients: float
    optimizer: float
    batch: float
    activations: float  # at the peak, with the gradients on their way
    scratch: float  # of the update

    @property
    def bytes(self) -> int:
        """All together."""
        return round(self.gradients + self.optimizer + self.batch + max(self.activations, self.scratch))


@dataclass(frozen=True)
class StepMemory:
    """What a step needs from some stretch on, in some segments, for any batch size and optimizer."""

    moments: MemoryCurve
    batch: Amount
    learned: float  # bytes of the weights that learn
    largest: float  # of them

    def of(self, plan: RetrainingPlan) -> MemoryFootprint:
        """For a plan of that kind."""
        return MemoryFootprint(
            gradients=self.learned,
            optimizer=self.learned * STATES[plan.optimizer],
            batch=self.batch.of(plan.batch_size),
            activations=self.moments.peak(plan.batch_size),
            scratch=2.0 * self.largest,
        )


def step_memory(trace: StepTrace, staged: StagedNetwork, frozen: int, segments: int) -> StepMemory:
    """Of a step that learns from all but the first `frozen` stretches."""
    weights = {
        id(one): one.nelement() * one.element_size() for stage in staged.stages[frozen:] for one in stage.weights
    }
    moments = envelope(trace.stages, frozen, checkpoint_segments(trace, frozen, segments))
    return StepMemory(moments, trace.batch, float(sum(weights.values())), float(max(weights.values(), default=0)))


def plan_footprint(trace: StepTrace, staged: StagedNetwork, plan: RetrainingPlan) -> MemoryFootprint:
    """What a plan needs above the process as it is, as far as tensors tell."""
    return step_memory(trace, staged, staged.frozen_stages(plan.freeze_rate), plan.segments).of(plan)


def checkpoint_segments(trace: StepTrace, frozen: int, segments: int) -> list[range]:
    """The learning links in this many groups that follow one another, so that the largest keeps as little as may be."""
    stages = range(frozen, len(trace.stages))
    count = max(1, min(segments, len(stages)))
    kept = [trace.stages[at].saved.per_sample + 1.0 for at in stages]
    low, high = max(kept), sum(kept)
    for _ in range(30):  # the smallest size into which they can be parted
        middle = (low + high) / 2
        low, high = (low, middle) if len(_parted(kept, middle)) <= count else (middle, high)
    parts = _parted(kept, high)
    while len(parts) < count:  # fewer would do: part the longest ones further
        at = max(range(len(parts)), key=lambda one: len(parts[one]))
        middle_of = parts[at].start + len(parts[at]) // 2
        parts[at : at + 1] = [range(parts[at].start, middle_of), range(middle_of, parts[at].stop)]
    return [range(part.start + frozen, part.stop + frozen) for part in parts]


def _parted(kept: Sequence[float], most: float) -> list[range]:
    """In order, each group as long as it may be without keeping more than so much."""
    groups, start, filled = [], 0, 0.0
    for at, one in enumerate(kept):
        if at > start and filled + one > most * (1 + 1e-9):
            groups.append(range(start, at))
            start, filled = at, 0.0
        filled += one
    return [*groups, range(start, len(kept))]


def envelope(stages: Sequence[StageTrace], frozen: int, groups: Sequence[range]) -> MemoryCurve:
    """All moments of a step, on the way there and on the way back: what is alive in each, for any batch size."""
    moments: list[MemoryCurve] = []
    given = Amount()
    for stage in stages[:frozen]:
        moments.append(stage.forward.above(given))
        given = stage.output
    doors = [given]  # where each group begins: kept until its gradients are done
    for group in groups[:-1]:  # forward, keeping nothing else
        held, inner = _total(doors), Amount()
        for at in group:
            moments.append(stages[at].forward.above(held + inner))
            inner = stages[at].output
        doors.append(inner)
    for place in reversed(range(len(groups))):  # forward again, and back
        held = _total(doors[: place + 1])
        if place < len(groups) - 1:
            held += stages[groups[place][-1]].output  # the gradient that arrived
        there, back = _there_and_back(stages, groups[place])
        moments += [one.above(held) for one in there]
        if len(groups) == 1 and not stages[groups[0][0]].keeps_input:
            held = Amount()  # what came in is gone by then
        moments += [one.above(held) for one in back]
    return MemoryCurve(
        np.concatenate([one.fixed for one in moments]), np.concatenate([one.per_sample for one in moments])
    )


def _there_and_back(stages: Sequence[StageTrace], group: range) -> tuple[list[MemoryCurve], list[MemoryCurve]]:
    """Forward with all that is kept, then backward."""
    moments, before = [], []
    kept, given = Amount(), Amount()
    for at in group:
        stage = stages[at]
        before.append(kept)
        is_there = at == group[0] or _is_kept(stages, at - 1, group)
        moments.append(stage.learning.above(kept if is_there else kept + given))
        kept += stage.saved
        if not stage.keeps_output and _is_kept(stages, at, group):
            kept += stage.output
        given = stage.output
    return moments, [stages[at].backward.above(before[at - group[0]]) for at in group]


def _is_kept(stages: Sequence[StageTrace], at: int, group: range) -> bool:
    """Whether what a link hands on stays for the gradients, of its own or of the next one's."""
    return stages[at].keeps_output or (at + 1 in group and stages[at + 1].keeps_input)


def _total(amounts: Sequence[Amount]) -> Amount:
    return sum(amounts, Amount())
