"""Train models on synthetic patterns, and write new data for them: `python pattern_models.py FOLDER WORKLOAD…`.

The new data are the same patterns with inverted brightness, so that a retraining gains much. FOLDER/models and
FOLDER/data have a folder for each workload.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from onefold import Data
from onefold.datasets import write_data
from onefold.training.weights import write_weights
from onefold.vocabulary.workload_reference import load

SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10": {"depth": 14, "width": 24},
    "cifar10-mobilenet": {"width": 1.0},
    "cifar10-vit": {"width": 96, "depth": 3},
}
NOISE = {"cifar10": 8.0, "cifar10-mobilenet": 4.5, "cifar10-vit": 1.8}  # each still improves after half of the window
SAMPLES = 2000  # of the original training
NEW_SAMPLES = 2400  # of which a retraining holds out a fifth


def patterns(noise: float, *counts: int) -> list[Any]:
    """Return noisy images of ten patterns, in parts of these sizes."""
    rng = np.random.default_rng(0)
    clean = rng.normal(size=(10, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    parts = []
    for count in counts:
        targets = rng.integers(10, size=count)
        images = clean[targets] + noise * rng.normal(size=(count, 3, 32, 32))
        parts.append((images.astype(np.float32), targets))
    return parts


def train(name: str, samples: Any, folder: Path) -> None:
    """Train a model for three epochs, and write its weights and its card."""
    workload = load(name)
    config = workload.space.complete(SETTINGS[name])
    torch.manual_seed(0)
    network = workload.build(config)
    inputs, targets = (torch.as_tensor(array) for array in samples)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(3):
        for batch in torch.randperm(len(targets)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(network(inputs[batch]), targets[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    folder.mkdir(parents=True)
    write_weights(folder, network.state_dict())
    (folder / "model.json").write_text(json.dumps({"workload": name, "config": dict(config)}))


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names:
        samples, (images, targets) = patterns(NOISE[name], SAMPLES, NEW_SAMPLES)
        write_data(Path(folder) / "data" / name, Data((-images, targets)))
        train(name, samples, Path(folder) / "models" / name)


if __name__ == "__main__":
    main()
