"""Operators that are alike are fast for the same decisions: what was found for one is tried on the next.

The compiler makes tiles fit a loop of another length. What is fast for a convolution of other sizes, or with other
steps fused behind it, is often fast here too, and sometimes not; so the best of several operators are measured before
anything is searched for. Not so where windows differ: a convolution of single points, one of 3x3, one that takes each
channel by itself and one that takes three colours have little to tell each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onefold.vocabulary.kernels import Operator, ScheduleCandidate

NEAREST = 4  # operators that are asked
COMPARED = 2  # shapes: what comes in, and the weights
FEW = (1, 3)  # channels that a window takes at a time: a single one, or colours
OTHER_RANK = 16.0  # the distance of shapes that have not even as many sizes


def unlike(one: Operator, other: Operator) -> float:
    """How far two operators are from each other: by how many times their sizes differ; without end for other kinds, or
    other windows."""
    if one.kind != other.kind or _window(one) != _window(other):
        return math.inf
    pairs = zip(one.shapes[:COMPARED], other.shapes[:COMPARED])
    return sum((_apart(mine, theirs) for mine, theirs in pairs), 0.0)


def from_kin(
    operator: Operator, known: Mapping[Operator, Sequence[ScheduleCandidate]], count: int
) -> list[ScheduleCandidate]:
    """The fastest of the nearest operators: the best of each, then the second of each. Also its own from elsewhere."""
    near = sorted((unlike(operator, other), at, other) for at, other in enumerate(known) if known[other])
    asked = [other for distance, _, other in near if math.isfinite(distance)][:NEAREST]
    each = [fastest(known[other], math.ceil(count / len(asked))) for other in asked]
    longest = max(map(len, each), default=0)
    return [one[at] for at in range(longest) for one in each if at < len(one)][:count]


def fastest(candidates: Sequence[ScheduleCandidate], count: int) -> list[ScheduleCandidate]:
    """Of those that did not fail."""
    fast = sorted((one.latency_s, at) for at, one in enumerate(candidates) if one.latency_s is not None)
    return [candidates[at] for _, at in fast[:count]]


def _window(operator: Operator) -> list[int]:
    """Of a convolution: the sizes of its window, and how many channels that takes where they are few."""
    sizes = [int(size) for size in operator.shapes[1].split("x")] if operator.kind == "conv2d" else []
    if len(sizes) != 4:
        return []
    is_last = max(sizes[:2]) > max(sizes[2:])  # channels come before the window
    window, channels = (sizes[2:], sizes[1]) if is_last else (sizes[:2], sizes[2])
    return [*window, channels] if channels in FEW else window


def _apart(mine: str, theirs: str) -> float:
    sizes, others = ([int(size) for size in shape.split("x")] for shape in (mine, theirs))
    if len(sizes) != len(others):
        return OTHER_RANK
    return sum(abs(math.log2((1 + one) / (1 + other))) for one, other in zip(sizes, others))
