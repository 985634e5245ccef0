"""Splits as the training loop hands them to a workload, and the real files where this machine has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onefold import Config, Workload

BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[3] / "shared" / "data"


class PlainSplit:
    """Arrays, cut into batches."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.tensors = [torch.from_numpy(array) for array in arrays]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[torch.Tensor, ...]]:
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for chosen in order.split(size):
            yield tuple(tensor[chosen] for tensor in self.tensors)


Train = Callable[..., dict[str, float]]


@pytest.fixture
def train() -> Train:
    """Trains a workload with a configuration and returns what it scores on validation after the last epoch."""

    def run(workload: Workload, config: Config, epochs: int, most: int | None = None) -> dict[str, float]:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        data = workload.data()
        known, held_back = (PlainSplit(*(a[:most] for a in part)) for part in (data.train, data.validation))
        model = workload.build(config)
        optimizer = workload.optimizer(model, config)
        for _ in range(epochs):
            model.train()
            workload.train_epoch(model, workload.batches(known, config, generator), optimizer, config)
        model.eval()
        with torch.no_grad():
            return dict(workload.evaluate(model, held_back.batches(512), config))

    return run


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One core is what every trial may count on; put back what was found."""
    found = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(found)


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Skips a test unless this machine has the real file of that name."""

    def check(file: str) -> None:
        folder = Path(os.environ.get("ONEFOLD_DATA") or BESIDE_THE_REPOSITORY)
        if not (folder / file).is_file():
            pytest.skip(f"{file} is neither in $ONEFOLD_DATA nor in shared/data beside the repository")
        monkeypatch.setenv("ONEFOLD_DATA", str(folder))

    return check
