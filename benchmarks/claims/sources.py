"""Models trained on clean CIFAR-10, and what they meet afterwards: the same kind of pictures, corrupted."""

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
from onefold.vocabulary.workload_reference import load

MODELS = {"cifar10": {"depth": 14, "width": 16}, "cifar10-mobilenet": {}, "cifar10-vit": {}}
EPOCHS, BATCH, RATE = 90, 256, 2e-3
SEVERITY = 5
NEW, TEST = 3200, 2000  # samples of new data, of which a fifth is kept back by the retraining, and of test data


def source_model(name: str, folder: Path, epochs: int = EPOCHS) -> Path:
    """The folder of a model that was trained on clean pictures; trained once and kept."""
    place = folder / name
    if (place / "model.json").is_file():
        return place
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
        for chosen in order.split(BATCH)[: len(inputs) // BATCH]:
            loss = functional.cross_entropy(network(_varied(inputs[chosen])), targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    print(f"{name} trained on clean pictures in {time.monotonic() - began:.0f} s", flush=True)
    place.mkdir(parents=True, exist_ok=True)
    torch.save({key: value.cpu() for key, value in network.state_dict().items()}, place / "weights.pt")
    (place / "model.json").write_text(json.dumps({"workload": name, "config": dict(config)}))
    return place


def _varied(images: Tensor) -> Tensor:
    """Turned around or not, and moved by up to four pixels."""
    turned = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    padded = functional.pad(torch.where(turned, images.flip(3), images), (4, 4, 4, 4))
    down, right = (int(one) for one in torch.randint(0, 9, (2,)))
    return padded[:, :, down : down + 32, right : right + 32]


def shifted(kind: str, folder: Path) -> Path:
    """A folder of new data: pictures that no model has seen, corrupted; with test pictures apart from them."""
    place = folder / f"{kind}-{SEVERITY}"
    if (place / "targets.npy").is_file():
        return place
    data = corrupted_cifar10(kind, SEVERITY)
    new = tuple(part[:NEW] for part in data.validation)  # not data.train, which the model has seen without corruption
    return write_data(place, Data(train=new, test=tuple(part[:TEST] for part in data.test)))
