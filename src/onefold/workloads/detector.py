"""Blood cells under the microscope and a small one-shot detector, in the manner of YOLO (Redmon et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from onefold import Choice, Config, Data, Float, Int, Objective, Space, Workload, datasets
from onefold.vocabulary.records import Metrics
from onefold.workloads.boxes import Found, distinct, mean_average_precision, overlap

CLASSES = 3
MOST_BOXES = 60


class OneShot(nn.Module):
    """Shrinks the picture eightfold and says for each cell of that grid whether an object has its centre there.

    What it says of a cell: object or not, x and y inside the cell, width and height, and a score for each class.
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
        """(N, 3, 120, 160) to (N, 15, 20, 8)."""
        cells: Tensor = self.head(self.features(images)).permute(0, 2, 3, 1)
        return cells


class BloodCells(Workload):
    """Red cells, white cells and platelets: where are they?"""

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
        return OneShot(config)

    def data(self) -> Data:
        return datasets.bccd()

    def loss(self, outputs: Tensor, targets: Tensor, config: Config) -> Tensor:
        """How wrong the cells are about objects, and the cells with an object about its box and its class."""
        rows, columns = outputs.shape[1:3]
        image, number = torch.nonzero(targets[..., 0] >= 0, as_tuple=True)
        truth = targets[image, number]
        centre = (truth[:, 1:3] + truth[:, 3:5]) / 2
        row = (centre[:, 1] * rows).long().clamp(0, rows - 1)
        column = (centre[:, 0] * columns).long().clamp(0, columns - 1)
        objects = torch.zeros_like(outputs[..., 0])
        objects[image, row, column] = 1.0
        found = boxes_of(outputs)[image, row, column]

        # Shared out over the objects; a batch without any still teaches the cells to stay silent.
        object_loss = functional.binary_cross_entropy_with_logits(outputs[..., 0], objects, reduction="sum")
        box_loss = (1 - overlap(found[:, None], truth[:, None, 1:])).sum()
        class_loss = functional.cross_entropy(outputs[image, row, column, 5:], truth[:, 0].long(), reduction="sum")
        total: Tensor = object_loss + config.box_weight * box_loss + class_loss
        return total / max(1, len(truth))

    def metrics(self, outputs: Tensor, targets: Tensor, config: Config) -> Metrics:
        """The loss, and the mean average precision with boxes that overlap by half or more."""
        chance, kind = outputs[..., 5:].softmax(dim=-1).max(dim=-1)
        scores = outputs[..., 0].sigmoid() * chance
        found = Found(boxes_of(outputs).flatten(1, 2), kind.flatten(1), scores.flatten(1))
        return {
            "loss": float(self.loss(outputs, targets, config)),
            "map50": mean_average_precision(distinct(found, MOST_BOXES), targets[..., 1:], targets[..., 0]),
        }


def boxes_of(outputs: Tensor) -> Tensor:
    """The box that each cell proposes, (N, rows, columns, 4), in shares of the picture."""
    rows, columns = outputs.shape[1:3]
    row = torch.arange(rows, device=outputs.device).unsqueeze(1)
    column = torch.arange(columns, device=outputs.device)
    inside, size = outputs[..., 1:3].sigmoid(), outputs[..., 3:5].sigmoid()
    centre = torch.stack([(column + inside[..., 0]) / columns, (row + inside[..., 1]) / rows], dim=-1)
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)
