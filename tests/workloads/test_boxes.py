"""Overlap, suppression and average precision, against the plainest way to compute each."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from onefold.workloads.boxes import Found, area, average_precision, distinct, mean_average_precision, overlap

Truth = tuple[torch.Tensor, torch.Tensor]


def boxes(count: int, generator: torch.Generator) -> torch.Tensor:
    corner = torch.rand((3, count, 2), generator=generator)
    return torch.cat([corner, corner + 0.2 + 0.4 * torch.rand((3, count, 2), generator=generator)], dim=-1)


def scene(seed: int) -> tuple[Found, Truth]:
    """Three pictures with up to 6 boxes of 2 classes each, and 20 finds, half of which are near a box."""
    generator = torch.Generator().manual_seed(seed)
    truth = boxes(6, generator)
    classes = torch.randint(-1, 2, (3, 6), generator=generator)
    near = truth.repeat(1, 2, 1)[:, :10] + 0.1 * torch.rand((3, 10, 4), generator=generator)
    scores = torch.rand((3, 20), generator=generator).sort(dim=1, descending=True).values
    shuffled = torch.cat([near, boxes(10, generator)], dim=1)[:, torch.randperm(20, generator=generator)]
    return Found(shuffled, torch.randint(0, 2, (3, 20), generator=generator), scores), (truth, classes)


def plain_overlap(one: list[float], other: list[float]) -> float:
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    union = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (one, other)) - width * height
    return width * height / union


def plain_average_precision(found: Found, truth: Truth, kind: int) -> float:
    """As Pascal VOC defines it: all finds of a class in the order of their scores, one by one."""
    finds = [
        (float(found.scores[i, k]), i, found.boxes[i, k].tolist())
        for i in range(3)
        for k in range(found.scores.shape[1])
        if found.classes[i, k] == kind and found.scores[i, k] > 0
    ]
    wanted = {(i, m): truth[0][i, m].tolist() for i in range(3) for m in range(6) if truth[1][i, m] == kind}
    taken, hits, points = set(), 0, [(0.0, 1.0)]
    for rank, (_, image, box) in enumerate(sorted(finds, reverse=True), start=1):
        mine = {key: plain_overlap(box, other) for key, other in wanted.items() if key[0] == image}
        best = max(mine, key=lambda key: mine[key], default=None)
        if best is not None and mine[best] >= 0.5 and best not in taken:
            taken.add(best)
            hits += 1
        points.append((hits / len(wanted), hits / rank))
    return sum(
        (recall - before) * max(precision for at, precision in points if at >= recall)
        for (before, _), (recall, _) in pairwise(points)
    )


def test_overlap_is_intersection_over_union() -> None:
    one = torch.tensor([[0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0]])
    other = torch.tensor([[1.0, 0.0, 3.0, 2.0], [0.0, 0.0, 2.0, 2.0], [2.0, 2.0, 3.0, 3.0]])
    torch.testing.assert_close(overlap(one, other), torch.tensor([[1 / 3, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert area(torch.tensor([2.0, 2.0, 1.0, 1.0])) == 0


@pytest.mark.parametrize("seed", range(5))
def test_of_finds_that_say_the_same_the_best_is_kept(seed: int) -> None:
    found, _ = scene(seed)
    kept = distinct(found, most=15, threshold=0.3)
    assert kept.scores.shape == (3, 15)
    for image in range(3):
        chosen: list[int] = []
        for k in range(15):
            alike = [c for c in chosen if found.classes[image, c] == found.classes[image, k]]
            pair = found.boxes[image].tolist()
            if all(plain_overlap(pair[c], pair[k]) <= 0.3 for c in alike):
                chosen.append(k)
        assert torch.nonzero(kept.scores[image]).flatten().tolist() == chosen


@pytest.mark.parametrize("seed", range(10))
def test_precision_is_as_pascal_voc_defines_it(seed: int) -> None:
    found, truth = scene(seed)
    plain = [plain_average_precision(found, truth, kind) for kind in (0, 1) if (truth[1] == kind).any()]
    assert mean_average_precision(found, *truth) == pytest.approx(sum(plain) / len(plain))
    assert 0 < mean_average_precision(found, *truth) < 1


def test_a_perfect_detector_scores_one() -> None:
    _, (truth, classes) = scene(0)
    found = Found(truth, classes.clamp(min=0), (classes >= 0) * torch.rand(3, 6))
    assert mean_average_precision(found, truth, classes) == pytest.approx(1)


def test_a_blind_detector_scores_nothing() -> None:
    found, (truth, classes) = scene(0)
    blind = Found(found.boxes, found.classes, torch.zeros_like(found.scores))
    assert mean_average_precision(blind, truth, classes) == 0
    assert mean_average_precision(found, truth, torch.full_like(classes, -1)) == 0


def test_average_precision_by_hand() -> None:
    scores, right = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False])
    assert average_precision(scores, right, wanted=2) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(scores[:0], right[:0], wanted=2) == 0
