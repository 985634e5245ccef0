"""Bounding boxes: intersection over union, non-maximum suppression and mean average precision.

A box is x0, y0, x1, y1 in the last dimension. All functions are batched over images: (N, boxes, ...).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Detections:
    """Boxes (N, K, 4) with classes (N, K) and scores (N, K), in descending order of score; a score of 0 is no box."""

    boxes: Tensor
    classes: Tensor
    scores: Tensor


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of each pair of (..., A, 4) and (..., B, 4) as (..., A, B)."""
    first, second = first.unsqueeze(-2), second.unsqueeze(-3)
    sides = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    intersection = sides.clamp(min=0).prod(dim=-1)
    return intersection / (area(first) + area(second) - intersection).clamp(min=1e-9)


def area(boxes: Tensor) -> Tensor:
    """Return the area of each box, 0 for an inverted one."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def non_max_suppression(detections: Detections, limit: int, threshold: float = 0.5) -> Detections:
    """Keep the `limit` best detections, and zero the score of those whose IoU with a better one exceeds `threshold`.

    Only detections of the same class suppress each other.
    """
    scores, order = detections.scores.topk(min(limit, detections.scores.shape[1]), dim=1)
    boxes = detections.boxes.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
    classes = detections.classes.gather(1, order)
    is_duplicate = (iou(boxes, boxes) > threshold) & (classes.unsqueeze(2) == classes.unsqueeze(1))
    is_kept = torch.ones_like(scores, dtype=torch.bool)
    for rank in range(scores.shape[1] - 1):
        is_kept[:, rank + 1 :] &= ~(is_duplicate[:, rank, rank + 1 :] & is_kept[:, rank : rank + 1])
    return Detections(boxes, classes, scores * is_kept)


def mean_average_precision(detections: Detections, boxes: Tensor, classes: Tensor, threshold: float = 0.5) -> float:
    """Return the area under the precision-recall curve, averaged over the classes present; 1 is perfect.

    The ground truth is `boxes` (N, M, 4) of `classes` (N, M), where a negative class is padding. A detection is correct
    if the box of its class with the highest IoU reaches `threshold` and no better detection has matched that box.
    """
    is_same_class = detections.classes.unsqueeze(2) == classes.unsqueeze(1)
    best_iou, match = (iou(detections.boxes, boxes) * is_same_class).max(dim=2)
    is_correct = (best_iou >= threshold) & (detections.scores > 0)
    is_matched = torch.zeros_like(classes, dtype=torch.bool)
    images = torch.arange(len(classes), device=classes.device)
    for rank in range(match.shape[1]):
        is_correct[:, rank] &= ~is_matched[images, match[:, rank]]
        is_matched[images, match[:, rank]] |= is_correct[:, rank]
    precisions = []
    for label in sorted(set(classes[classes >= 0].tolist())):
        of_class = (detections.classes == label) & (detections.scores > 0)
        precisions.append(
            average_precision(detections.scores[of_class], is_correct[of_class], int((classes == label).sum()))
        )
    return sum(precisions) / max(1, len(precisions))


def average_precision(scores: Tensor, is_correct: Tensor, positives: int) -> float:
    """Return the area under the precision-recall curve of scored detections, given the number of true boxes."""
    correct = is_correct[scores.argsort(descending=True, stable=True)].double()
    precision = correct.cumsum(0) / torch.arange(1, len(correct) + 1, device=correct.device)
    envelope = precision.flip(0).cummax(0).values.flip(0)  # interpolated: the best precision at this recall or above
    return float((envelope * correct).sum()) / positives
