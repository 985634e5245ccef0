"""The detector's grid, loss and training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onefold import Config
from onefold.workloads.detector import BloodCells, decode_boxes

TARGETS = torch.tensor(
    [
        [[0.0, 0.10, 0.20, 0.35, 0.41], [2.0, 0.70, 0.70, 0.75, 0.78], [1.0, 0.41, 0.05, 0.90, 0.55]],
        [[0.0, 0.91, 0.91, 1.00, 1.00], [-1.0] * 5, [-1.0] * 5],
    ]
)


def perfect(targets: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a network without errors."""
    outputs = torch.full((len(targets), 15, 20, 8), -12.0)
    for image, boxes in enumerate(targets):
        for label, x0, y0, x1, y1 in boxes[boxes[:, 0] >= 0].tolist():
            x, y = (x0 + x1) / 2 * 20, (y0 + y1) / 2 * 15
            cell = outputs[image, int(y), int(x)]
            cell[0] = cell[5 + int(label)] = 12.0
            cell[1:5] = torch.tensor([x % 1, y % 1, x1 - x0, y1 - y0]).logit(eps=1e-6)
    return outputs


def test_each_cell_decodes_to_a_box_around_its_center() -> None:
    boxes = decode_boxes(torch.zeros(1, 15, 20, 8))
    assert boxes.shape == (1, 15, 20, 4)
    torch.testing.assert_close(boxes[0, 0, 0], torch.tensor([0.025 - 0.25, 1 / 30 - 0.25, 0.025 + 0.25, 1 / 30 + 0.25]))
    torch.testing.assert_close(boxes[0, 14, 19, :2] + 0.25, torch.tensor([0.975, 1 - 1 / 30]))


def test_perfect_outputs_have_no_loss_and_the_best_score() -> None:
    workload, config = BloodCells(), BloodCells.space.default()
    metrics = workload.metrics(perfect(TARGETS), TARGETS, config)
    assert metrics["map50"] == pytest.approx(1)
    assert metrics["loss"] == pytest.approx(0, abs=0.01)


def test_each_error_raises_the_loss() -> None:
    workload, config = BloodCells(), BloodCells.space.default()
    outputs = perfect(TARGETS)
    best = float(workload.loss(outputs, TARGETS, config))
    for channel in range(8):
        wrong = outputs.clone()
        wrong[..., channel] *= -1
        assert float(workload.loss(wrong, TARGETS, config)) > best + 0.1, channel


def test_image_without_objects_trains_objectness() -> None:
    workload, config = BloodCells(), BloodCells.space.default()
    outputs = torch.zeros(1, 15, 20, 8, requires_grad=True)
    loss = workload.loss(outputs, torch.full((1, 3, 5), -1.0), config)
    loss.backward()
    assert torch.isfinite(loss)
    assert outputs.grad is not None
    assert (outputs.grad[..., 0] > 0).all()


def test_training_reaches_useful_precision(
    require_file: Callable[[str], None], train: Callable[..., dict[str, float]]
) -> None:
    require_file("bccd.npz")
    workload = BloodCells()
    assert workload.objective.metrics == ("map50",)
    assert train(workload, Config(workload.space.default(), batch_size=4), epochs=1)["map50"] > 0.3
