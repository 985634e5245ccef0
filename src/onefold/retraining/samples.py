"""New data: lazily read samples, split into training and validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data

VALIDATION_SHARE = 0.2  # of the new data, if it has no validation split
MIN_SAMPLES = 5

Indices = NDArray[np.intp]
Batch = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of arrays of equal length, targets last. Rows are read when they are needed."""

    arrays: tuple[Any, ...]
    rows: Indices
    device: torch.device
    channels_last: bool = False  # memory format of images; convolutions on a CPU are faster so

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Indices | slice) -> Batch:
        """Return the samples at these indices as tensors on the device."""
        rows = self.rows[indices]
        tensors = (_tensor(array, rows).to(self.device) for array in self.arrays)
        return tuple(
            tensor.contiguous(memory_format=torch.channels_last) if self.channels_last and tensor.dim() == 4 else tensor
            for tensor in tensors
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all samples in order."""
        for start in range(0, len(self), size):
            yield self.batch(slice(start, start + size))

    def first(self, count: int) -> Samples:
        """Return the first `count` samples; samples are ordered so that any prefix is stratified by class."""
        return replace(self, rows=self.rows[:count])


class BatchOrder:
    """Shuffled sample indices, epoch after epoch."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self.samples = samples
        self._rng = np.random.default_rng(seed)
        self._remaining: Indices = np.empty(0, np.intp)

    def take(self, count: int) -> Indices:
        """Return the next `count` indices; fewer at the end of an epoch, but never a single one."""
        if len(self._remaining) < 2:
            self._remaining = self._rng.permutation(len(self.samples)).astype(np.intp)
        taken, self._remaining = self._remaining[:count], self._remaining[count:]
        return taken


@dataclass(frozen=True)
class NewData:
    """The new data, split."""

    train: Samples
    validation: Samples

    def with_channels_last(self) -> NewData:
        """Return the same data with images in channels-last memory format (NHWC)."""
        return NewData(replace(self.train, channels_last=True), replace(self.validation, channels_last=True))


def split_new_data(data: Data, device: torch.device) -> NewData:
    """Split off validation samples, unless the data has a validation split.

    Raises:
        DatasetError: The arrays are malformed or have too few samples.
    """
    train = _check_arrays(data.train)
    if data.validation is not None:
        validation = _check_arrays(data.validation)
        _check_count(len(train[-1]))
        return NewData(_stratified(train, device), _stratified(validation, device))
    _check_count(len(train[-1]))
    samples = _stratified(train, device)
    held_out = max(1, round(VALIDATION_SHARE * len(samples)))
    return NewData(Samples(train, samples.rows[held_out:], device), Samples(train, samples.rows[:held_out], device))


def _check_count(count: int) -> None:
    if count < MIN_SAMPLES:
        raise DatasetError(f"new data needs at least {MIN_SAMPLES} samples, some of them for validation, got {count}")


def _check_arrays(part: Any) -> tuple[Any, ...]:
    if isinstance(part, Sequence) and not isinstance(part, str):
        arrays = tuple(part)
        if len(arrays) >= 2 and all(getattr(array, "shape", ()) for array in arrays):
            lengths = {len(array) for array in arrays}
            if len(lengths) == 1 and lengths != {0}:
                return arrays
            raise DatasetError(f"inputs and targets must have equal, non-zero lengths, got {sorted(lengths)}")
    raise DatasetError("new data must be a tuple of arrays or tensors of equal length, inputs first and targets last")


def _stratified(arrays: tuple[Any, ...], device: torch.device) -> Samples:
    """Return all rows, shuffled so that every prefix has about the class proportions of the whole."""
    order = np.random.RandomState(0).permutation(len(arrays[-1]))
    first = _tensor(arrays[-1], np.arange(1))
    if first.dim() > 1 or first.is_floating_point():  # no classes: nothing to read
        return Samples(arrays, order.astype(np.intp), device)
    targets = np.asarray(_tensor(arrays[-1], np.arange(len(order))))
    position = np.empty(len(targets))
    for label in np.unique(targets):
        members = order[targets[order] == label]
        position[members] = (np.arange(len(members)) + 0.5) / len(members)
    return Samples(arrays, order[np.argsort(position[order], kind="stable")].astype(np.intp), device)


def _tensor(array: Any, rows: Indices) -> Tensor:
    """Read rows as float32 or int64."""
    if isinstance(array, Tensor):
        chosen = array[torch.from_numpy(rows)]
        if chosen.dtype == torch.float64:
            return chosen.float()
        return chosen.long() if chosen.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) else chosen
    values = np.ascontiguousarray(array[rows])
    if values.dtype.kind == "u" or values.dtype in (np.int8, np.int16, np.int32):
        values = values.astype(np.int64)
    elif values.dtype == np.float64:
        values = values.astype(np.float32)
    return torch.from_numpy(values)
