"""Splits of a dataset: batches for training and scoring, and nested subsets of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from onefold.training.shared_data import open_data
from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.workload import Workload

MIN_SAMPLES = 1000  # a share of the data has at least this many, or the metrics of a rung would be noise
GOLDEN_RATIO = (5**0.5 - 1) / 2
VALIDATION_SHARE = 0.2  # held out from the training data of workloads without validation data


@dataclass
class LoaderSettings:
    """Settings of the data loader, which may change between two batches."""

    workers: int = 0  # processes that prefetch batches; 0 loads them in this process


class ArraySplit:
    """Arrays of equal length, the targets last, on one accelerator."""

    loader: LoaderSettings | None = None  # arrays need no data loader

    def __init__(self, tensors: tuple[Tensor, ...], indices: Tensor | None = None) -> None:
        self.tensors = tensors
        self.device = tensors[0].device
        self.indices = indices  # of the samples in this split; None for all

    def __len__(self) -> int:
        return len(self.tensors[0]) if self.indices is None else len(self.indices)

    def batches(self, size: int, generator: Any = None) -> Iterator[tuple[Tensor, ...]]:
        """Yield batches of `size`; with a generator they are shuffled, and `drops_last` may drop the last one."""
        if generator is None and self.indices is None:
            yield from zip(*(torch.split(tensor, size) for tensor in self.tensors))
            return
        indices = torch.arange(len(self)) if self.indices is None else self.indices
        for chosen in _batch_indices(indices, size, generator):
            on_device = chosen.to(self.device)
            yield tuple(tensor[on_device] for tensor in self.tensors)

    def share(self, fraction: float, at_least: int = 1) -> ArraySplit:
        """Return a stratified subset with `fraction` of the samples. Larger subsets contain the smaller ones."""
        count = min(len(self), max(round(fraction * len(self)), at_least))
        return ArraySplit(self.tensors, self._stratified[:count]) if count < len(self) else self

    def hold_out(self, fraction: float) -> tuple[ArraySplit, ArraySplit]:
        """Return two stratified parts: the rest, and `fraction` of the samples."""
        count = max(1, round(fraction * len(self)))
        return (
            ArraySplit(self.tensors, self._stratified[count:].sort().values),
            ArraySplit(self.tensors, self._stratified[:count].sort().values),
        )

    @cached_property
    def _stratified(self) -> Tensor:
        targets = self.tensors[-1] if self.indices is None else self.tensors[-1][self.indices.to(self.device)]
        order = stratified_order(targets.cpu())
        return order if self.indices is None else self.indices[order]


class DatasetSplit:
    """A torch `Dataset`, loaded by this process or by workers and moved to the accelerator batch by batch."""

    def __init__(
        self, dataset: Any, device: torch.device, indices: Tensor | None = None, loader: LoaderSettings | None = None
    ) -> None:
        self.dataset = dataset
        self.device = device
        self.indices = indices if indices is not None else torch.arange(len(dataset))
        self.loader = loader or LoaderSettings()

    def __len__(self) -> int:
        return len(self.indices)

    def batches(self, size: int, generator: Any = None) -> Iterator[Any]:
        """Yield batches of `size` like `ArraySplit`; changed loader settings apply from the next batch on."""
        remaining = [chosen.tolist() for chosen in _batch_indices(self.indices, size, generator)]
        # Data loader workers must not consume the random numbers of the trial.
        seeds = torch.Generator()
        seeds.manual_seed(int(torch.randint(2**62, (), generator=generator)) if generator is not None else 0)
        while remaining:
            workers = self.loader.workers
            loader = torch.utils.data.DataLoader(
                self.dataset, batch_sampler=remaining, num_workers=workers, generator=seeds
            )
            for batch in loader:
                remaining = remaining[1:]
                yield moved(batch, self.device)
                if self.loader.workers != workers:
                    break

    def share(self, fraction: float, at_least: int = 1) -> DatasetSplit:
        """Return a stratified subset like `ArraySplit.share`."""
        count = min(len(self), max(round(fraction * len(self)), at_least))
        return self._subset(self._stratified[:count]) if count < len(self) else self

    def hold_out(self, fraction: float) -> tuple[DatasetSplit, DatasetSplit]:
        """Return two stratified parts: the rest, and `fraction` of the samples."""
        count = max(1, round(fraction * len(self)))
        return self._subset(self._stratified[count:]), self._subset(self._stratified[:count])

    def _subset(self, indices: Tensor) -> DatasetSplit:
        return DatasetSplit(self.dataset, self.device, indices, self.loader)

    @cached_property
    def _stratified(self) -> Tensor:
        targets = getattr(self.dataset, "targets", None)
        known = torch.zeros(len(self.dataset)) if targets is None else torch.as_tensor(targets)
        return self.indices[stratified_order(known[self.indices])]


class StreamSplit:
    """A torch `IterableDataset`, read in its own order and moved to the accelerator batch by batch.

    A share of it is a fixed, nested subset of positions; its number of samples is unknown.
    """

    loader: LoaderSettings | None = None  # workers would each read the whole stream

    def __init__(self, dataset: Any, device: torch.device, fraction: float = 1.0, at_least: int = 0) -> None:
        self.dataset = dataset
        self.device = device
        self._fraction = fraction
        self._at_least = at_least

    def __len__(self) -> int:
        raise TypeError("the number of samples of an IterableDataset is unknown")

    def batches(self, size: int, generator: Any = None) -> Iterator[Any]:  # noqa: ARG002 - the stream has an order
        """Yield batches of `size` in the order of the stream."""
        selected = _SelectedStream(self.dataset, self._fraction, self._at_least)
        for batch in torch.utils.data.DataLoader(selected, batch_size=size):
            yield moved(batch, self.device)

    def share(self, fraction: float, at_least: int = 1) -> StreamSplit:
        """Return a subset with about `fraction` of the samples. Larger subsets contain the smaller ones."""
        return StreamSplit(self.dataset, self.device, fraction, at_least) if fraction < 1 else self


class _SelectedStream(torch.utils.data.IterableDataset[Any]):
    """The samples of a stream at the positions of a share."""

    def __init__(self, dataset: Any, fraction: float, at_least: int) -> None:
        self._dataset = dataset
        self._fraction = fraction
        self._at_least = at_least

    def __iter__(self) -> Iterator[Any]:
        for position, sample in enumerate(self._dataset):
            # The golden ratio spreads the positions of any share evenly.
            if position < self._at_least or position * GOLDEN_RATIO % 1.0 < self._fraction:
                yield sample


AnySplit = ArraySplit | DatasetSplit | StreamSplit


@dataclass(frozen=True)
class Splits:
    """The splits of a workload's data on one accelerator."""

    train: AnySplit
    validation: AnySplit
    test: AnySplit | None


def open_splits(workload: Workload, device: torch.device, shared: Path | None = None) -> Splits:
    """Return the splits of a workload's data; its arrays are memory-mapped from the folder `shared`, if given."""
    data = open_data(workload, shared)
    train = open_split(data.train, device, "train")
    if train is None:
        raise WorkloadError(f"data() of {workload.name} has no train part")
    validation = open_split(data.validation, device, "validation")
    if validation is None:
        if isinstance(train, StreamSplit):
            raise WorkloadError(f"the train part of {workload.name} is an IterableDataset: give a validation part, too")
        train, validation = train.hold_out(VALIDATION_SHARE)
    return Splits(train, validation, open_split(data.test, device, "test"))


def open_split(part: Any, device: torch.device, name: str) -> AnySplit | None:
    """Return the split of one part of a workload's data; None for None. Raises WorkloadError for other types."""
    if part is None:
        return None
    if isinstance(part, torch.utils.data.IterableDataset):
        return StreamSplit(part, device)
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


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch, also a nested one, with its tensors on a device. A list of tensors becomes a tuple."""
    on_device = tree_map(lambda part: part.to(device) if isinstance(part, Tensor) else part, batch)
    return tuple(on_device) if isinstance(on_device, list) else on_device


def drops_last(count: int, size: int) -> bool:
    """Return whether the last training batch is dropped: a single sample after larger batches breaks batch norms."""
    return count > size and count % size == 1


def stratified_order(targets: Tensor) -> Tensor:
    """Return a fixed random permutation of which every prefix has the class proportions of the whole.

    Each class is spread evenly over the permutation. Targets that are not class labels are only shuffled.
    """
    rng = np.random.default_rng(0)
    count = len(targets)
    labels = targets.numpy() if targets.ndim == 1 and not targets.is_floating_point() else np.zeros(count, dtype=int)
    shuffled = rng.permutation(count)
    position = np.empty(count)
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        position[members] = (np.arange(len(members)) + rng.random()) / len(members)
    return torch.from_numpy(np.argsort(position, kind="stable"))


def _batch_indices(indices: Tensor, size: int, generator: Any) -> tuple[Tensor, ...]:
    """Return the indices of each batch; shuffled with a generator, in order without one."""
    if generator is not None:
        indices = indices[torch.randperm(len(indices), generator=generator)]
        indices = indices[:-1] if drops_last(len(indices), size) else indices
    return torch.split(indices, size)
