"""Twenty-four networks of eight families, as float and as int8, exported to ONNX with random weights.

    python networks.py FOLDER      writes NAME.onnx, NAME-int8.onnx and the samples beside them

Weights do not change the cost of a network, so that recordings stay valid when the files are written again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onefold.serving.export import export, samples_beside
from onefold.vocabulary.records import Config
from onefold.workloads.mobilenet import Cifar10Mobilenet
from onefold.workloads.resnet import Cifar10Resnet

SAMPLES = 4
STEP = 1 / 128  # of weights and samples, so that the files can be compressed
WORDS = 2000


class TextCnn(nn.Module):
    """Convolutions of several widths over the words of a text."""

    def __init__(self, width: int, filters: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, filters, size) for size in (3, 4, 5))
        self.head = nn.Linear(3 * filters, 4)

    def forward(self, text: Tensor) -> Tensor:
        words = self.words(text).transpose(1, 2)
        features = [torch.relu(layer(words)).amax(-1) for layer in self.convolutions]
        result: Tensor = self.head(torch.cat(features, 1))
        return result


class Recurrent(nn.Module):
    """A bidirectional LSTM or GRU over the words of a text."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = kind(width, hidden, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, 4)

    def forward(self, text: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(self.words(text))[0].mean(1))
        return result


class Attention(nn.Module):
    """Transformer blocks: attention and MLP with residuals, written with plain operators."""

    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(WORDS, width), heads
        self.mixes = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(blocks))
        self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(blocks))
        self.head = nn.Linear(width, 4)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        for mix, projection, mlp, norm in zip(self.mixes, self.projections, self.mlps, self.norms):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in mix(norm(x)).chunk(3, -1))
            weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
            x = x + projection((weights @ v).transpose(1, 2).flatten(2))
            x = x + mlp(x)
        result: Tensor = self.head(x.mean(1))
        return result


def lenet(filters: int, hidden: int) -> nn.Module:
    """Two convolutions and two dense layers for pictures of 28x28."""
    return nn.Sequential(
        nn.Conv2d(1, filters, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(filters, 2 * filters, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * filters, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    )  # fmt: skip


def plain_cnn(width: int) -> nn.Module:
    """Six 3x3 convolutions in three stages."""
    layers: list[nn.Module] = []
    for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def audio_cnn(width: int) -> nn.Module:
    """Four convolutions over 16,000 amplitudes."""
    layers: list[nn.Module] = []
    for before, after, size, stride in ((1, width, 80, 16), (width, width, 3, 1), (width, 2 * width, 3, 1)):
        layers += [nn.Conv1d(before, after, size, stride), nn.ReLU(), nn.MaxPool1d(4)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, 35))


def mlp(width: int, depth: int) -> nn.Module:
    """Dense layers over 784 pixels."""
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), *hidden, nn.Linear(width, 10))


def mobilenet(width: float) -> nn.Module:
    """The bundled MobileNetV2."""
    return Cifar10Mobilenet().build(Config(width=width, dropout=0.0))


def resnet(depth: int, width: int) -> nn.Module:
    """The bundled residual network."""
    return Cifar10Resnet().build(Config(depth=depth, width=width, dropout=0.0))


@dataclass(frozen=True)
class Subject:
    """A network and the shape of one sample; words if `is_text`."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    is_text: bool = False


SUBJECTS = {
    "lenet-6": Subject(lambda: lenet(6, 84), (1, 28, 28)),
    "lenet-32": Subject(lambda: lenet(32, 256), (1, 28, 28)),
    "cnn-16": Subject(lambda: plain_cnn(16), (3, 32, 32)),
    "cnn-48": Subject(lambda: plain_cnn(48), (3, 32, 32)),
    "cnn-32-64px": Subject(lambda: plain_cnn(32), (3, 64, 64)),
    "mobilenet-32px": Subject(lambda: mobilenet(0.5), (3, 32, 32)),
    "mobilenet-64px": Subject(lambda: mobilenet(1.0), (3, 64, 64)),
    "mobilenet-96px": Subject(lambda: mobilenet(0.5), (3, 96, 96)),
    "resnet-16": Subject(lambda: resnet(8, 16), (3, 32, 32)),
    "resnet-32": Subject(lambda: resnet(14, 32), (3, 32, 32)),
    "resnet-32-64px": Subject(lambda: resnet(14, 32), (3, 64, 64)),
    "lstm-64": Subject(lambda: Recurrent(nn.LSTM, 64, 64), (60,), is_text=True),
    "lstm-128": Subject(lambda: Recurrent(nn.LSTM, 64, 128, 2), (60,), is_text=True),
    "gru-96": Subject(lambda: Recurrent(nn.GRU, 64, 96), (120,), is_text=True),
    "transformer-64": Subject(lambda: Attention(64, 4, 1), (64,), is_text=True),
    "transformer-128": Subject(lambda: Attention(128, 4, 2), (128,), is_text=True),
    "transformer-256": Subject(lambda: Attention(256, 8, 2), (64,), is_text=True),
    "text-cnn-32": Subject(lambda: TextCnn(32, 32), (60,), is_text=True),
    "text-cnn-128": Subject(lambda: TextCnn(128, 128), (120,), is_text=True),
    "text-cnn-64": Subject(lambda: TextCnn(64, 100), (200,), is_text=True),
    "audio-16": Subject(lambda: audio_cnn(16), (1, 16000)),
    "audio-64": Subject(lambda: audio_cnn(64), (1, 16000)),
    "mlp-128": Subject(lambda: mlp(128, 3), (784,)),
    "mlp-1024": Subject(lambda: mlp(1024, 3), (784,)),
}


def write(name: str, folder: Path) -> tuple[Path, Path]:
    """Export a network; return its files as float and as int8."""
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    if subject.is_text:
        samples: Any = torch.randint(0, WORDS, (SAMPLES, *subject.shape))
    else:
        samples = (torch.randn(SAMPLES, *subject.shape) / STEP / 8).round() * STEP * 8
    network = subject.build().eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_((weight / STEP).round() * STEP)
    exact = export(network, [samples], folder / f"{name}.onnx")
    quantized = folder / f"{name}-int8.onnx"
    _quantize(exact, quantized, has_dense_only=subject.is_text)
    arrays = np.load(samples_beside(exact))
    np.savez(samples_beside(quantized), **{key: arrays[key] for key in arrays.files})
    return exact, quantized


def _quantize(exact: Path, target: Path, *, has_dense_only: bool) -> None:
    """Quantize to int8: activations of text networks when they run, those of others by calibration."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if has_dense_only:
        quantize_dynamic(exact, target, weight_type=QuantType.QInt8)
        return

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            arrays = np.load(samples_beside(exact))
            self.feeds = [{name: arrays[name][i : i + 1] for name in arrays.files} for i in range(SAMPLES)]

        def get_next(self) -> dict[str, Any] | None:
            return self.feeds.pop() if self.feeds else None

    quant_pre_process(exact, target, skip_symbolic_shape=True)
    quantize_static(target, target, Reader(), quant_format=QuantFormat.QDQ, per_channel=True)


if __name__ == "__main__":
    destination = Path(sys.argv[1])
    destination.mkdir(parents=True, exist_ok=True)
    for each in SUBJECTS:
        print(each, *(f"{path.stat().st_size / 1e6:.2f} MB" for path in write(each, destination)), flush=True)
