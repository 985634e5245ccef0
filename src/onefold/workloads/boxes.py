"""Boxes in pictures: how much they overlap, which of them say the same, and how good they are.

A box is x0, y0, x1, y1 in the last dimension. All functions work on a batch of pictures at once, (N, boxes, ...).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Found:
    """What a detector sees: boxes (N, K, 4), their classes (N, K) and scores (N, K), best first; score 0 is no box."""

    boxes: Tensor
    classes: Tensor
    scores: Tensor


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of each of (..., A, 4) with each of (..., B, 4): (..., A, B)."""
    one, other = one.unsqueeze(-2), other.unsqueeze(-3)
    sides = torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    common = sides.clamp(min=0).prod(dim=-1)
    return common / (area(one) + area(other) - common).clamp(min=1e-9)


def area(boxes: Tensor) -> Tensor:
    """The area of each box; 0 when it is turned inside out."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def distinct(found: Found, most: int, threshold: float = 0.5) -> Found:
    """The `most` best ones, without those that overlap a better one of their class by more than `threshold`."""
    scores, order = found.scores.topk(min(most, found.scores.shape[1]), dim=1)
    boxes = found.boxes.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
    classes = found.classes.gather(1, order)
    same = (overlap(boxes, boxes) > threshold) & (classes.unsqueeze(2) == classes.unsqueeze(1))
    kept = torch.ones_like(scores, dtype=torch.bool)
    for rank in range(scores.shape[1] - 1):
        kept[:, rank + 1 :] &= ~(same[:, rank, rank + 1 :] & kept[:, rank : rank + 1])
    return Found(boxes, classes, scores * kept)


def mean_average_precision(found: Found, boxes: Tensor, classes: Tensor, threshold: float = 0.5) -> float:
    """The area under precision over recall, averaged over the classes that occur; 1 is perfect.

    The truth is `boxes` (N, M, 4) of `classes` (N, M), where a negative class is no box. A find is right when the box
    of its class that it overlaps most is overlapped by at least `threshold` and not yet found by a better one.
    """
    same = found.classes.unsqueeze(2) == classes.unsqueeze(1)
    best, match = (overlap(found.boxes, boxes) * same).max(dim=2)
    right = (best >= threshold) & (found.scores > 0)
    taken = torch.zeros_like(classes, dtype=torch.bool)
    everyone = torch.arange(len(classes), device=classes.device)
    for rank in range(match.shape[1]):
        right[:, rank] &= ~taken[everyone, match[:, rank]]
        taken[everyone, match[:, rank]] |= right[:, rank]
    precisions = []
    for kind in sorted(set(classes[classes >= 0].tolist())):
        mine = (found.classes == kind) & (found.scores > 0)
        precisions.append(average_precision(found.scores[mine], right[mine], int((classes == kind).sum())))
    return sum(precisions) / max(1, len(precisions))


def average_precision(scores: Tensor, right: Tensor, wanted: int) -> float:
    """The area under precision over recall of finds with these scores, of which some are right, when `wanted` exist."""
    right = right[scores.argsort(descending=True, stable=True)].double()
    precision = right.cumsum(0) / torch.arange(1, len(right) + 1, device=right.device)
    envelope = precision.flip(0).cummax(0).values.flip(0)  # at a recall counts the best precision from there on
    return float((envelope * right).sum()) / wanted
