"""Transfers schedules between similar operators: decisions that are fast for one are often fast for the next.

TVM adapts tile sizes to loops of other lengths. What is fast for a convolution of other sizes, or with another fused
epilogue, is often fast here too, so the best candidates of several similar operators are measured first. Convolutions
with different windows do not transfer: pointwise, 3x3, depthwise and three-channel input convolutions differ too much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onefold.vocabulary.kernels import Operator, ScheduleCandidate

MAX_SOURCES = 4  # operators to transfer from
COMPARED_SHAPES = 2  # the input and the weights
FEW_CHANNELS = (1, 3)  # depthwise convolutions and RGB inputs
RANK_MISMATCH_DISTANCE = 16.0


def operator_distance(first: Operator, second: Operator) -> float:
    """Return the sum of log2 ratios of the operators' sizes; infinite for other kinds or windows."""
    if first.kind != second.kind or _window(first) != _window(second):
        return math.inf
    return sum(map(_shape_distance, first.shapes[:COMPARED_SHAPES], second.shapes[:COMPARED_SHAPES]), 0.0)


def transfer_candidates(
    operator: Operator, known: Mapping[Operator, Sequence[ScheduleCandidate]], count: int
) -> list[ScheduleCandidate]:
    """Return the fastest candidates of the nearest operators: the best of each, then the second of each.

    `known` may hold the operator itself with candidates that were measured on another machine.
    """
    near = sorted((operator_distance(operator, other), at, other) for at, other in enumerate(known) if known[other])
    sources = [other for distance, _, other in near if math.isfinite(distance)][:MAX_SOURCES]
    rankings = [fastest(known[source], math.ceil(count / len(sources))) for source in sources]
    longest = max(map(len, rankings), default=0)
    return [ranking[at] for at in range(longest) for ranking in rankings if at < len(ranking)][:count]


def fastest(candidates: Sequence[ScheduleCandidate], count: int) -> list[ScheduleCandidate]:
    """Return up to `count` candidates with the lowest latencies."""
    ranked = sorted(
        (candidate.latency_s, at) for at, candidate in enumerate(candidates) if candidate.latency_s is not None
    )
    return [candidates[at] for _, at in ranked[:count]]


def _window(operator: Operator) -> list[int]:
    """Return the window of a convolution, with the number of channels if they are few; empty for other operators."""
    sizes = [int(size) for size in operator.shapes[1].split("x")] if operator.kind == "conv2d" else []
    if len(sizes) != 4:
        return []
    is_oihw = max(sizes[:2]) > max(sizes[2:])
    window, channels = (sizes[2:], sizes[1]) if is_oihw else (sizes[:2], sizes[2])
    return [*window, channels] if channels in FEW_CHANNELS else window


def _shape_distance(first: str, second: str) -> float:
    sizes, others = ([int(size) for size in shape.split("x")] for shape in (first, second))
    if len(sizes) != len(others):
        return RANK_MISMATCH_DISTANCE
    return sum(abs(math.log2((1 + size) / (1 + other))) for size, other in zip(sizes, others))
