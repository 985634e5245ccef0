"""IoU, non-maximum suppression and average precision, against naive implementations."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from onefold.workloads.boxes import (
    Detections,
    area,
    average_precision,
    iou,
    mean_average_precision,
    non_max_suppression,
)

Truth = tuple[torch.Tensor, torch.Tensor]


def boxes(count: int, generator: torch.Generator) -> torch.Tensor:
    corner = torch.rand((3, count, 2), generator=generator)
    return torch.cat([corner, corner + 0.2 + 0.4 * torch.rand((3, count, 2), generator=generator)], dim=-1)


def scene(seed: int) -> tuple[Detections, Truth]:
    """Return three images with up to 6 boxes of 2 classes each, and 20 detections, half of them near a box."""
    generator = torch.Generator().manual_seed(seed)
    truth = boxes(6, generator)
    classes = torch.randint(-1, 2, (3, 6), generator=generator)
    near = truth.repeat(1, 2, 1)[:, :10] + 0.1 * torch.rand((3, 10, 4), generator=generator)
    scores = torch.rand((3, 20), generator=generator).sort(dim=1, descending=True).values
    shuffled = torch.cat([near, boxes(10, generator)], dim=1)[:, torch.randperm(20, generator=generator)]
    return Detections(shuffled, torch.randint(0, 2, (3, 20), generator=generator), scores), (truth, classes)


def naive_iou(first: list[float], second: list[float]) -> float:
    width = max(0.0, min(first[2], second[2]) - max(first[0], second[0]))
    height = max(0.0, min(first[3], second[3]) - max(first[1], second[1]))
    union = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (first, second)) - width * height
    return width * height / union


def naive_average_precision(detections: Detections, truth: Truth, label: int) -> float:
    """Follow the definition of Pascal VOC: detections of a class one by one, in order of score."""
    ranked = [
        (float(detections.scores[i, k]), i, detections.boxes[i, k].tolist())
        for i in range(3)
        for k in range(detections.scores.shape[1])
        if detections.classes[i, k] == label and detections.scores[i, k] > 0
    ]
    true_boxes = {(i, m): truth[0][i, m].tolist() for i in range(3) for m in range(6) if truth[1][i, m] == label}
    matched, hits, points = set(), 0, [(0.0, 1.0)]
    for rank, (_, image, box) in enumerate(sorted(ranked, reverse=True), start=1):
        overlaps = {key: naive_iou(box, other) for key, other in true_boxes.items() if key[0] == image}
        best = max(overlaps, key=lambda key: overlaps[key], default=None)
        if best is not None and overlaps[best] >= 0.5 and best not in matched:
            matched.add(best)
            hits += 1
        points.append((hits / len(true_boxes), hits / rank))
    return sum(
        (recall - before) * max(precision for at, precision in points if at >= recall)
        for (before, _), (recall, _) in pairwise(points)
    )


def test_iou() -> None:
    first = torch.tensor([[0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0]])
    second = torch.tensor([[1.0, 0.0, 3.0, 2.0], [0.0, 0.0, 2.0, 2.0], [2.0, 2.0, 3.0, 3.0]])
    torch.testing.assert_close(iou(first, second), torch.tensor([[1 / 3, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert area(torch.tensor([2.0, 2.0, 1.0, 1.0])) == 0


@pytest.mark.parametrize("seed", range(5))
def test_non_max_suppression_keeps_the_best_of_duplicates(seed: int) -> None:
    detections, _ = scene(seed)
    kept = non_max_suppression(detections, limit=15, threshold=0.3)
    assert kept.scores.shape == (3, 15)
    for image in range(3):
        kept_indices: list[int] = []
        for k in range(15):
            same_class = [c for c in kept_indices if detections.classes[image, c] == detections.classes[image, k]]
            pair = detections.boxes[image].tolist()
            if all(naive_iou(pair[c], pair[k]) <= 0.3 for c in same_class):
                kept_indices.append(k)
        assert torch.nonzero(kept.scores[image]).flatten().tolist() == kept_indices


@pytest.mark.parametrize("seed", range(10))
def test_mean_average_precision_matches_pascal_voc(seed: int) -> None:
    detections, truth = scene(seed)
    naive = [naive_average_precision(detections, truth, label) for label in (0, 1) if (truth[1] == label).any()]
    assert mean_average_precision(detections, *truth) == pytest.approx(sum(naive) / len(naive))
    assert 0 < mean_average_precision(detections, *truth) < 1


def test_perfect_detections_score_one() -> None:
    _, (truth, classes) = scene(0)
    detections = Detections(truth, classes.clamp(min=0), (classes >= 0) * torch.rand(3, 6))
    assert mean_average_precision(detections, truth, classes) == pytest.approx(1)


def test_no_detections_score_zero() -> None:
    detections, (truth, classes) = scene(0)
    empty = Detections(detections.boxes, detections.classes, torch.zeros_like(detections.scores))
    assert mean_average_precision(empty, truth, classes) == 0
    assert mean_average_precision(detections, truth, torch.full_like(classes, -1)) == 0


def test_average_precision_by_hand() -> None:
    scores, is_correct = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False])
    assert average_precision(scores, is_correct, positives=2) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(scores[:0], is_correct[:0], positives=2) == 0
