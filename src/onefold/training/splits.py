"""The parts of a data set as the loop uses them: batches, and shares of which the larger contain the smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onefold.vocabulary.errors import WorkloadError

FEW = 1000  # samples; a share of the data is never smaller than this: a rung's verdict must not be noise


@dataclass
class Loading:
    """How a data set is read, to be changed between two batches."""

    workers: int = 0  # processes that read ahead; none: batches are read when they are needed


class ArraySplit:
    """Arrays of equal length, the targets last, all on one accelerator."""

    loading: Loading | None = None  # nothing is to be read

    def __init__(self, tensors: tuple[Tensor, ...], order: Tensor | None = None) -> None:
        self.tensors = tensors
        self.device = tensors[0].device
        self.order = order  # which samples belong to it; all of them without it

    def __len__(self) -> int:
        return len(self.tensors[0]) if self.order is None else len(self.order)

    def batches(self, size: int, generator: Any = None) -> Iterator[tuple[Tensor, ...]]:
        """Batches of `size`; shuffled for training, where a last batch of one sample is left out (`ends_alone`)."""
        if generator is None and self.order is None:
            yield from zip(*(torch.split(tensor, size) for tensor in self.tensors))
            return
        order = torch.arange(len(self)) if self.order is None else self.order
        if generator is not None:
            order = order[torch.randperm(len(order), generator=generator)]
            order = order[:-1] if ends_alone(len(order), size) else order
        for chosen in torch.split(order, size):
            there = chosen.to(self.tensors[0].device)
            yield tuple(tensor[there] for tensor in self.tensors)

    def share(self, fraction: float, at_least: int = 1) -> ArraySplit:
        """The first `fraction` of its samples, in a fixed order whose every beginning has the classes' proportions."""
        count = min(len(self), max(round(fraction * len(self)), at_least))
        if count == len(self):
            return self
        return ArraySplit(self.tensors, self._balanced[:count])

    def parted(self, fraction: float) -> tuple[ArraySplit, ArraySplit]:
        """Two parts with the classes' proportions: the rest, and `fraction` of it."""
        count = max(1, round(fraction * len(self)))
        return (
            ArraySplit(self.tensors, self._balanced[count:].sort().values),
            ArraySplit(self.tensors, self._balanced[:count].sort().values),
        )

    @cached_property
    def _balanced(self) -> Tensor:
        targets = self.tensors[-1] if self.order is None else self.tensors[-1][self.order.to(self.tensors[-1].device)]
        order = balanced_order(targets.cpu())
        return order if self.order is None else self.order[order]


class DatasetSplit:
    """A torch `Dataset`, read by this process or by others and moved to the accelerator batch by batch."""

    def __init__(
        self, dataset: Any, device: torch.device, order: Tensor | None = None, loading: Loading | None = None
    ) -> None:
        self.dataset = dataset
        self.device = device
        self.order = order if order is not None else torch.arange(len(dataset))
        self.loading = loading or Loading()

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, size: int, generator: Any = None) -> Iterator[Any]:
        """Batches of `size`, as those of arrays; who reads them may change in between."""
        order = self.order
        if generator is not None:
            order = order[torch.randperm(len(order), generator=generator)]
            order = order[:-1] if ends_alone(len(order), size) else order
        left = [chosen.tolist() for chosen in torch.split(order, size)]
        # Whoever reads must not draw from the trial's own random numbers.
        seeds = torch.Generator()
        seeds.manual_seed(int(torch.randint(2**62, (), generator=generator)) if generator is not None else 0)
        while left:
            workers = self.loading.workers
            loader = torch.utils.data.DataLoader(self.dataset, batch_sampler=left, num_workers=workers, generator=seeds)
            for batch in loader:
                left = left[1:]
                yield tuple(part.to(self.device) for part in batch)
                if self.loading.workers != workers:
                    break

    def share(self, fraction: float, at_least: int = 1) -> DatasetSplit:
        count = min(len(self), max(round(fraction * len(self)), at_least))
        return self._part(self._balanced[:count]) if count < len(self) else self

    def parted(self, fraction: float) -> tuple[DatasetSplit, DatasetSplit]:
        count = max(1, round(fraction * len(self)))
        return self._part(self._balanced[count:]), self._part(self._balanced[:count])

    def _part(self, order: Tensor) -> DatasetSplit:
        return DatasetSplit(self.dataset, self.device, order, self.loading)

    @cached_property
    def _balanced(self) -> Tensor:
        targets = getattr(self.dataset, "targets", None)
        known = torch.zeros(len(self.dataset)) if targets is None else torch.as_tensor(targets)
        return self.order[balanced_order(known[self.order])]


AnySplit = ArraySplit | DatasetSplit


def ends_alone(count: int, size: int) -> bool:
    """Whether the last of several batches has one sample although the others have more; that breaks norms."""
    return count > size and count % size == 1


def balanced_order(targets: Tensor) -> Tensor:
    """A fixed random order in which every beginning has the proportions of the classes.

    Each class is spread evenly over the whole order. Targets that are not class numbers are merely shuffled.
    """
    rng = np.random.default_rng(0)
    count = len(targets)
    classes = targets.numpy() if targets.ndim == 1 and not targets.is_floating_point() else np.zeros(count, dtype=int)
    shuffled = rng.permutation(count)
    place = np.empty(count)
    for label in np.unique(classes):
        members = shuffled[classes[shuffled] == label]
        place[members] = (np.arange(len(members)) + rng.random()) / len(members)
    return torch.from_numpy(np.argsort(place, kind="stable"))


def split_of(part: Any, device: torch.device, name: str) -> AnySplit | None:
    """The split that a part of the user's data stands for; None for None."""
    if part is None:
        return None
    if hasattr(part, "__getitem__") and not isinstance(part, (tuple, list)):
        return DatasetSplit(part, device)
    if not isinstance(part, (tuple, list)) or len(part) < 2:
        raise WorkloadError(
            f"{name} must be a tuple of arrays, the targets last, or a torch Dataset, but got {type(part)}"
        )
    tensors = tuple(torch.as_tensor(array).to(device) for array in part)
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) > 1:
        raise WorkloadError(f"the arrays of {name} must have equal lengths, but have {sorted(lengths)}")
    if lengths == {0}:
        raise WorkloadError(f"{name} has no samples")
    return ArraySplit(tensors)
