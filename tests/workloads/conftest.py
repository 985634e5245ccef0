"""A minimal training loop, and the real data files if this machine has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onefold import Config, Workload

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


class ArraySplit:
    """A split over numpy arrays, as the training loop passes it to a workload."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.tensors = [torch.from_numpy(array) for array in arrays]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[torch.Tensor, ...]]:
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for indices in order.split(size):
            yield tuple(tensor[indices] for tensor in self.tensors)


Train = Callable[..., dict[str, float]]


@pytest.fixture
def train() -> Train:
    """Return a function that trains a workload and returns its validation metrics after the last epoch."""

    def run(workload: Workload, config: Config, epochs: int, limit: int | None = None) -> dict[str, float]:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        data = workload.data()
        train, validation = (ArraySplit(*(array[:limit] for array in part)) for part in (data.train, data.validation))
        model = workload.build(config)
        optimizer = workload.optimizer(model, config)
        for _ in range(epochs):
            model.train()
            workload.train_epoch(model, workload.batches(train, config, generator), optimizer, config)
        model.eval()
        with torch.no_grad():
            return dict(workload.evaluate(model, validation.batches(512), config))

    return run


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, as every trial may count on one core, and restore the number afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def require_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that skips the test unless this machine has the named data file."""

    def check(file: str) -> None:
        folder = Path(os.environ.get("ONEFOLD_DATA") or SHARED_DATA)
        if not (folder / file).is_file():
            pytest.skip(f"{file} is neither in $ONEFOLD_DATA nor in shared/data beside the repository")
        monkeypatch.setenv("ONEFOLD_DATA", str(folder))

    return check
