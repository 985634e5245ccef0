"""Source models trained on clean CIFAR-10, and corrupted images to retrain them on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from onefold import Data
from onefold.baselines.shifted_datasets import corrupted_cifar10
from onefold.datasets import cifar10, write_data
from onefold.training.weights import write_weights
from onefold.vocabulary.workload_reference import load

MODELS = {"cifar10": {"depth": 14, "width": 16}, "cifar10-mobilenet": {}, "cifar10-vit": {}}
EPOCHS, BATCH, RATE = 90, 256, 2e-3
SEVERITY = 5
NEW, TEST = 3200, 2000  # samples of new data, a fifth of which validates, and of test data


def source_model(name: str, folder: Path, epochs: int = EPOCHS) -> Path:
    """Return the folder of a model trained on clean images; trained once, then cached."""
    target = folder / name
    if (target / "model.json").is_file():
        return target
    workload = load(name)
    config = workload.space.complete(MODELS[name])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    network = workload.build(config).to(device)
    data = cifar10()
    inputs, targets = (torch.as_tensor(part).to(device) for part in data.train)
    steps = epochs * (len(inputs) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.15)
    began = time.monotonic()
    for _ in range(epochs):
        order = torch.randperm(len(inputs), device=device)
        for batch in order.split(BATCH)[: len(inputs) // BATCH]:
            loss = functional.cross_entropy(network(_augment(inputs[batch])), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    print(f"{name} trained on clean images in {time.monotonic() - began:.0f} s", flush=True)
    target.mkdir(parents=True, exist_ok=True)
    write_weights(target, network.state_dict())
    (target / "model.json").write_text(json.dumps({"workload": name, "config": dict(config)}))
    return target


def _augment(images: Tensor) -> Tensor:
    """Flip images at random, and shift the batch by up to four pixels."""
    is_flipped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    padded = functional.pad(torch.where(is_flipped, images.flip(3), images), (4, 4, 4, 4))
    down, right = (int(offset) for offset in torch.randint(0, 9, (2,)))
    return padded[:, :, down : down + 32, right : right + 32]


def shifted(kind: str, folder: Path) -> Path:
    """Return a folder of new data: corrupted images that no model has seen, with separate test images."""
    target = folder / f"{kind}-{SEVERITY}"
    if (target / "targets.npy").is_file():
        return target
    data = corrupted_cifar10(kind, SEVERITY)
    new = tuple(part[:NEW] for part in data.validation)  # not data.train: the model was trained on its clean images
    return write_data(target, Data(train=new, test=tuple(part[:TEST] for part in data.test)))
