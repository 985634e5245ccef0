"""A traced step and a plan -> the memory at its peak, above what the process has before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.plans import Plan
from onefold.retraining.chain import Chain
from onefold.retraining.tracing import LinkTrace, Trace

STATES = {"adam": 2, "sgd": 1}  # what an optimizer remembers of each weight; sgd: its momentum


@dataclass(frozen=True)
class Footprint:
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


def footprint(trace: Trace, chain: Chain, plan: Plan) -> Footprint:
    """What a plan needs above the process as it is, as far as tensors tell."""
    frozen = chain.frozen_links(plan.freeze_rate)
    weights = {id(one): one.nelement() * one.element_size() for link in chain.links[frozen:] for one in link.weights}
    learned = float(sum(weights.values()))
    return Footprint(
        gradients=learned,
        optimizer=learned * STATES[plan.optimizer],
        batch=trace.batch.of(plan.batch_size),
        activations=_peak(trace.links, frozen, stretches(trace, frozen, plan.segments), plan.batch_size),
        scratch=2.0 * max(weights.values(), default=0),
    )


def stretches(trace: Trace, frozen: int, segments: int) -> list[range]:
    """The learning links in this many groups that follow one another, so that the largest keeps as little as may be."""
    links = range(frozen, len(trace.links))
    count = max(1, min(segments, len(links)))
    kept = [trace.links[at].saved.per_sample + 1.0 for at in links]
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


def _peak(links: Sequence[LinkTrace], frozen: int, groups: list[range], size: int) -> float:
    """The most that is alive at once, on the way there and on the way back."""
    peak = 0.0
    for at in range(frozen):
        given = links[at - 1].output.of(size) if at else 0.0
        peak = max(peak, given + links[at].forward.peak(size))
    entering = links[frozen - 1].output.of(size) if frozen else 0.0
    held = entering  # for the first group, which begins with it
    doors: list[float] = []
    for group in groups[:-1]:  # forward, keeping nothing but where each group begins
        doors.append(held)
        given = 0.0
        for at in group:
            peak = max(peak, held + given + links[at].forward.peak(size))
            given = links[at].output.of(size)
        held += given
    for place in range(len(groups) - 1, -1, -1):  # forward again, and back
        before = sum(doors[place + 1 :]) * 0.0 + (held if place == len(groups) - 1 else doors[place])
        arriving = 0.0 if place == len(groups) - 1 else links[groups[place][-1]].output.of(size)
        peak = max(peak, before + arriving + _group_peak(links, groups[place], size))
    return peak


def _group_peak(links: Sequence[LinkTrace], group: range, size: int) -> float:
    """Forward with all that is kept, then backward."""
    peak, kept = 0.0, 0.0
    before: list[float] = []
    given = 0.0  # the output of the link before, where nobody keeps it it goes once it was used
    for at in group:
        link = links[at]
        before.append(kept)
        extra = given if at > group[0] and not _is_kept(links, at - 1, group) else 0.0
        peak = max(peak, kept + extra + link.learning.peak(size))
        kept += link.saved.of(size)
        if not link.keeps_output and _is_kept(links, at, group):
            kept += link.output.of(size)
        given = link.output.of(size)
    for at in reversed(group):
        link = links[at]
        own_input = 0.0
        if link.keeps_input and at > group[0] and not links[at - 1].keeps_output:
            own_input = 0.0  # counted among what was kept before
        peak = max(peak, before[at - group[0]] + own_input + link.backward.peak(size))
    return peak


def _is_kept(links: Sequence[LinkTrace], at: int, group: range) -> bool:
    """Whether what a link hands on stays for the gradients, of its own or of the next one's."""
    return links[at].keeps_output or (at + 1 in group and links[at + 1].keeps_input)
