"""Six bundled networks exported to ONNX: two for images, two for text, one for audio, one for detection."""

from __future__ import annotations

import random
from pathlib import Path

from onefold.serving.export import export
from onefold.training.splits import open_split
from onefold.vocabulary.errors import Rejected
from onefold.vocabulary.records import Config
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

NAMES = ("fashion", "cifar10", "agnews-cnn", "newsgroups-lstm", "speech", "blood-cells")


def exported(name: str, folder: Path) -> Path:
    """Export the network of a workload's default configuration, with random weights and a few real samples."""
    import torch

    workload = load(name)
    split = open_split(workload.data().train, torch.device("cpu"), "train")
    assert split is not None
    samples = next(iter(split.batches(8)))[:-1]
    return export(workload.build(_config(workload)), samples, folder / f"{name}.onnx")


def _config(workload: Workload) -> Config:
    if workload.space.has_defaults:
        return workload.space.default()
    rng = random.Random(0)
    while True:
        config = workload.space.draw(rng)
        try:
            workload.check(config)
        except Rejected:
            continue
        return config
