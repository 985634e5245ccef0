"""Small networks, exported from PyTorch with a dynamic batch dimension."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn


class Recurrent(nn.Module):
    """One recurrent layer over sequences."""

    def __init__(self, kind: str, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(12, 16, batch_first=True, bidirectional=bidirectional)
        self.last = nn.Linear(16 * (1 + bidirectional), 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x)[0][:, -1])


class Words(nn.Module):
    """An embedding of token ids and a 1-D convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 16)
        self.convolution = nn.Conv1d(16, 8, 3)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.convolution(self.words(x).transpose(1, 2)))
        return self.last(x.max(-1).values)


class Attention(nn.Module):
    """A transformer layer, whose export computes shapes at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean(1)


def pictures() -> nn.Module:
    """A convolutional network."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, groups=2, bias=False),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


def exported(module: nn.Module, sample: torch.Tensor, path: Path, *, fold: bool = True) -> Path:
    """Export a network to ONNX; without `fold`, its normalization stays an operator."""
    module.train(not fold)
    mode = torch.onnx.TrainingMode.EVAL if fold else torch.onnx.TrainingMode.PRESERVE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the exporter itself, and about batches of LSTMs
        torch.onnx.export(
            module,
            (sample,),
            str(path),
            dynamo=False,
            training=mode,
            do_constant_folding=fold,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )
    return path
