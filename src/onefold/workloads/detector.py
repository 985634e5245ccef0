"""Blood cell detection with a small one-stage detector in the style of YOLO (Redmon et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Data, Float, Int, Objective, Space, Workload, datasets
from onefold.vocabulary.records import Metrics
from onefold.workloads.boxes import Detections, iou, mean_average_precision, non_max_suppression

CLASSES = 3
MAX_DETECTIONS = 60


class OneStageDetector(nn.Module):
    """Predicts one object per cell of a grid with an eighth of the image's resolution.

    The channels of a cell are objectness, x and y inside the cell, width and height, and one logit per class.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, channels = config.width, 3
        layers: list[nn.Module] = []
        for filters, stride in [(width, 2), (2 * width, 2), (4 * width, 2)] + [(4 * width, 1)] * config.depth:
            convolution = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(filters), nn.LeakyReLU(0.1)]
            channels = filters
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Dropout(config.dropout), nn.Conv2d(channels, 5 + CLASSES, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Map (N, 3, 120, 160) to (N, 15, 20, 8)."""
        cells: Tensor = self.head(self.features(images)).permute(0, 2, 3, 1)
        return cells


class BloodCells(Workload):
    """Detection of red cells, white cells and platelets."""

    objective = Objective(maximize="map50")

    space = Space(
        model=dict(
            width=Choice(8, 12, 16, 24, default=16),
            depth=Int(1, 3, default=2),
            dropout=Float(0.1, 0.5, default=0.1),
        ),
        training=dict(
            batch_size=Choice(4, 8, 16, 32, default=8),
            optimizer=Choice("adam", "sgd", default="adam"),
            lr=Float(1e-4, 1e-1, log=True, default=3e-3),
            momentum=Float(0.0, 0.99, default=0.9, when={"optimizer": "sgd"}),
            box_weight=Float(0.5, 8.0, log=True, default=2.0),
        ),
    )

    def build(self, config: Config) -> nn.Module:
        return OneStageDetector(config)

    def data(self) -> Data:
        return datasets.bccd()

    def loss(self, outputs: Tensor, targets: Tensor, config: Config) -> Tensor:
        """Return objectness loss of all cells plus box loss (1 - IoU) and class loss of the cells with an object."""
        rows, columns = outputs.shape[1:3]
        image, number = torch.nonzero(targets[..., 0] >= 0, as_tuple=True)
        truth = targets[image, number]
        center = (truth[:, 1:3] + truth[:, 3:5]) / 2
        row = (center[:, 1] * rows).long().clamp(0, rows - 1)
        column = (center[:, 0] * columns).long().clamp(0, columns - 1)
        objectness = torch.zeros_like(outputs[..., 0])
        objectness[image, row, column] = 1.0
        predicted = decode_boxes(outputs)[image, row, column]

        object_loss = functional.binary_cross_entropy_with_logits(outputs[..., 0], objectness, reduction="sum")
        box_loss = (1 - iou(predicted[:, None], truth[:, None, 1:])).sum()
        class_loss = functional.cross_entropy(outputs[image, row, column, 5:], truth[:, 0].long(), reduction="sum")
        total: Tensor = object_loss + config.box_weight * box_loss + class_loss
        return total / max(1, len(truth))  # a batch without objects still trains objectness

    def metrics(self, outputs: Tensor, targets: Tensor, config: Config) -> Metrics:
        """Return the loss and the mean average precision at an IoU of 0.5."""
        probability, label = outputs[..., 5:].softmax(dim=-1).max(dim=-1)
        scores = outputs[..., 0].sigmoid() * probability
        raw = Detections(decode_boxes(outputs).flatten(1, 2), label.flatten(1), scores.flatten(1))
        detections = non_max_suppression(raw, MAX_DETECTIONS)
        return {
            "loss": float(self.loss(outputs, targets, config)),
            "map50": mean_average_precision(detections, targets[..., 1:], targets[..., 0]),
        }


def decode_boxes(outputs: Tensor) -> Tensor:
    """Return the box that each cell predicts, (N, rows, columns, 4), relative to the image."""
    rows, columns = outputs.shape[1:3]
    row = torch.arange(rows, device=outputs.device).unsqueeze(1)
    column = torch.arange(columns, device=outputs.device)
    offset, size = outputs[..., 1:3].sigmoid(), outputs[..., 3:5].sigmoid()
    center = torch.stack([(column + offset[..., 0]) / columns, (row + offset[..., 1]) / rows], dim=-1)
    return torch.cat([center - size / 2, center + size / 2], dim=-1)
