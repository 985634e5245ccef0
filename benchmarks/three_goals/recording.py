"""Train every configuration of a grid on small images, and record its validation accuracy after each epoch.

Networks that share a shape and a batch size train together as one batched network: five learning rates on four samples
of the data. Their weights are rounded to 4 and 2 bits after each epoch, and evaluated again. Latency is that of a batch
on this machine, the least of many, and size that of the rounded weights.
"""

from __future__ import annotations

import json
import lzma
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onefold import datasets
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Space

FILE = Path(__file__).with_name("recordings.json.xz")
SOURCES = ("mnist", "fashion_mnist", "usps", "cifar10", "digits")
SAMPLES_PER_SOURCE = 4  # samples of the data, each with its own seeds: a study
SPACE = Space(
    width=Choice(4, 8, 16, 32, 64),
    depth=Choice(1, 2, 3),
    bits=Choice(2, 4, 32),
    batch_size=Choice(32, 128),
    lr=Choice(0.0003, 0.001, 0.003, 0.01, 0.1),
)
EPOCHS = 9
TRAINING, VALIDATION, SIDE, CLASSES = 800, 800, 8, 10
LATENCY_BATCH, LATENCY_RUNS = 64, 300


def record() -> None:
    """Train all grids, and write the recording."""
    studies: list[dict[str, Any]] = []
    for source in SOURCES:
        began = time.monotonic()
        studies += _record_source(source)
        print(f"{source}: {time.monotonic() - began:.0f} s", flush=True)
    content = json.dumps({"epochs": EPOCHS, "studies": studies}, separators=(",", ":"))
    FILE.write_bytes(lzma.compress(content.encode(), preset=9))


def grid() -> Iterator[Config]:
    """Yield the configurations in the order of the recording."""
    names = list(SPACE.parameters)
    for values in product(*(SPACE.parameters[name].grid(0) for name in names)):
        yield Config(dict(zip(names, values)))


def _record_source(source: str) -> list[dict[str, Any]]:
    arrays = getattr(datasets, source)().train
    samples = [_sample(arrays[0], arrays[-1], seed) for seed in range(SAMPLES_PER_SOURCE)]
    choices = {name: parameter.grid(0) for name, parameter in SPACE.parameters.items()}
    correct: dict[tuple[Any, ...], list[list[int]]] = {}  # by configuration: samples classified, by study and epoch
    latencies = {}
    for width, depth, batch_size in product(choices["width"], choices["depth"], choices["batch_size"]):
        sizes = [SIDE * SIDE, *[int(width)] * int(depth), CLASSES]
        latencies.setdefault((width, depth), _latency_s(sizes))
        for (bits, lr), counts in _train(sizes, samples, [float(lr) for lr in choices["lr"]], int(batch_size)).items():
            correct[width, depth, bits, batch_size, lr] = counts
    return [
        {
            "source": source,
            "latency_s": [round(latencies[config.width, config.depth], 9) for config in grid()],
            "size_bytes": [_size_bytes(config) for config in grid()],
            "correct": [correct[tuple(config[name] for name in SPACE.parameters)][study] for config in grid()],
        }
        for study in range(SAMPLES_PER_SOURCE)
    ]


def _sample(pictures: Any, classes: Any, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels and validation images and labels, images as vectors of 8x8 pixels."""
    chosen = np.random.default_rng(seed).permutation(len(classes))[: TRAINING + VALIDATION]
    images = torch.as_tensor(np.asarray(pictures)[chosen]).float()
    if images.ndim == 4:
        images = images.mean(dim=1 if images.shape[1] <= 3 else 3)
    images = torch.nn.functional.adaptive_avg_pool2d(images[:, None], SIDE).flatten(1)
    images = (images - images.mean()) / images.std()
    labels = torch.as_tensor(np.asarray(classes)[chosen]).long()
    cut = min(TRAINING, len(labels) // 2)
    return images[:cut], labels[:cut], images[cut : 2 * cut], labels[cut : 2 * cut]


def _train(
    sizes: list[int], samples: list[tuple[Tensor, ...]], rates: list[float], batch_size: int
) -> dict[tuple[int, float], list[list[int]]]:
    """Return the correctly classified validation samples by (bits, learning rate), study and epoch."""
    torch.manual_seed(0)
    runs = [(study, rate) for study in range(len(samples)) for rate in rates]
    x, y, x_valid, y_valid = (torch.stack([samples[study][part] for study, _ in runs]) for part in range(4))
    layers = [torch.randn(len(runs), a, b) * (2 / a) ** 0.5 for a, b in pairwise(sizes)]
    weights = [w.requires_grad_() for w in layers] + [
        torch.zeros(len(runs), 1, b, requires_grad=True) for b in sizes[1:]
    ]
    first, second = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    lr, step = torch.tensor([rate for _, rate in runs])[:, None, None], 0
    counts: dict[tuple[int, float], list[list[int]]] = {}
    for _ in range(EPOCHS):
        for batch in torch.randperm(x.shape[1]).split(batch_size):
            step += 1
            logits = _forward(x[:, batch], weights)
            loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), y[:, batch], reduction="none")
            gradients = torch.autograd.grad(loss.mean(dim=1).sum(), weights)
            with torch.no_grad():  # Adam, with a learning rate for each network
                for w, g, m, v in zip(weights, gradients, first, second):
                    m.mul_(0.9).add_(g, alpha=0.1)
                    v.mul_(0.999).addcmul_(g, g, value=0.001)
                    scale = (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
                    w -= lr * scale * m / (v.sqrt() + 1e-8)
        with torch.no_grad():
            for bits in SPACE.parameters["bits"].grid(0):
                rounded = weights if bits == 32 else [_rounded(w, int(bits)) for w in weights]
                hits = (_forward(x_valid, rounded).argmax(dim=2) == y_valid).sum(dim=1).tolist()
                for (study, rate), hit in zip(runs, hits):
                    by_study = counts.setdefault((int(bits), rate), [[] for _ in samples])
                    by_study[study].append(hit)
    return counts


def _forward(x: Tensor, weights: list[Tensor]) -> Tensor:
    depth = len(weights) // 2
    for layer in range(depth):
        x = torch.baddbmm(weights[depth + layer], x, weights[layer])
        x = torch.relu(x) if layer + 1 < depth else x
    return x


def _rounded(weight: Tensor, bits: int) -> Tensor:
    """Return symmetrically quantized weights, one scale for each output."""
    if weight.shape[1] == 1:
        return weight  # biases stay as they are
    levels = 2 ** (bits - 1) - 0.5
    scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / levels
    return ((weight / scale + 0.5).round() - 0.5).clamp(-levels, levels) * scale


def _latency_s(sizes: list[int]) -> float:
    """Return the seconds of one forward pass of a batch, the least of many: others run on this machine too."""
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    network = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())][:-1])
    x, best = torch.randn(LATENCY_BATCH, sizes[0]), float("inf")
    with torch.inference_mode():
        for _ in range(LATENCY_RUNS):
            began = time.perf_counter()
            network(x)
            best = min(best, time.perf_counter() - began)
    return best


def _size_bytes(config: Mapping[str, Any]) -> int:
    sizes = [SIDE * SIDE, *[config["width"]] * config["depth"], CLASSES]
    weights = sum(a * b for a, b in pairwise(sizes))
    return int(weights * config["bits"] / 8 + 4 * sum(sizes[1:]))


if __name__ == "__main__":
    record()
