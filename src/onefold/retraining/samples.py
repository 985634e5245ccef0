"""New data: lazily read samples, split into training and validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onefold.arrays.missing_targets import MissingTargets
from onefold.retraining.dataset_columns import dataset_columns
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data

VALIDATION_SHARE = 0.2  # of the new data, if it has no validation split
MIN_SAMPLES = 5
FEW = 16  # samples that are read at once to find a few
TARGETS_PER_READ = 4096
REPLAYED_SHARE = 0.25  # of an update: samples of the reference set

Indices = NDArray[np.intp]
Batch = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of arrays of equal length, targets last. Rows are read when they are needed."""

    arrays: tuple[Any, ...]
    rows: Indices
    device: torch.device
    channels_last: bool = False  # memory format of images; convolutions on a CPU are faster so
    dtype: torch.dtype = torch.float32  # of floating-point inputs
    skipped: set[int] = field(default_factory=set)  # rows with NaN or infinity that were met so far

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Indices | slice) -> Batch:
        """Return the samples at these indices as tensors on the device. Rows with NaN or infinity are left out."""
        rows = self.rows[indices]
        tensors = self._finite([_tensor(array, rows) for array in self.arrays], rows)
        return tuple(
            tensor.contiguous(memory_format=torch.channels_last) if self.channels_last and tensor.dim() == 4 else tensor
            for tensor in (*(self._input(tensor) for tensor in tensors[:-1]), tensors[-1].to(self.device))
        )

    def _input(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype) if tensor.is_floating_point() else tensor.to(self.device)

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all samples in order."""
        for start in range(0, len(self), size):
            batch = self.batch(slice(start, start + size))
            if len(batch[-1]):
                yield batch

    def targets(self) -> Iterator[NDArray[Any]]:
        """Yield all targets in order, in parts; no inputs are read, which may be large."""
        targets_only = Samples(self.arrays[-1:], self.rows, self.device)
        for batch in targets_only.batches(TARGETS_PER_READ):
            yield batch[-1].cpu().numpy()

    def few(self, count: int) -> Batch:
        """Return the first `count` samples, or as many as there are.

        Raises:
            DatasetError: All samples have NaN or infinity in them.
        """
        batches: list[Batch] = []
        for batch in self.batches(max(count, FEW)):
            batches.append(batch)
            if sum(len(parts[-1]) for parts in batches) >= count:
                break
        if not batches:
            raise DatasetError(f"all {len(self)} samples have NaN or infinity in them; write the data again")
        return tuple(torch.cat(parts)[:count] for parts in zip(*batches))

    def _finite(self, tensors: list[Tensor], rows: Indices) -> list[Tensor]:
        """Leave out rows with NaN or infinity, and remember which they are."""
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        if all(bool(tensor.sum().isfinite()) for tensor in floating):
            return tensors
        finite = torch.ones(len(rows), dtype=torch.bool)
        for tensor in floating:
            finite &= tensor.isfinite().flatten(1).all(1) if tensor.dim() > 1 else tensor.isfinite()
        self.skipped.update(rows[~finite.numpy()].tolist())
        return tensors if bool(finite.all()) else [tensor[finite] for tensor in tensors]

    def first(self, count: int) -> Samples:
        """Return the first `count` samples; samples are ordered so that any prefix is stratified by class."""
        return replace(self, rows=self.rows[:count])


class BatchOrder:
    """Shuffled sample indices, epoch after epoch, mixed with replayed samples of the original data."""

    def __init__(
        self, samples: Samples, seed: int, replayed: Samples | None = None, replayed_share: float = REPLAYED_SHARE
    ) -> None:
        self.samples = samples
        self.replayed_share = replayed_share
        self.replayed = replayed
        self._rng = np.random.default_rng(seed)
        self._remaining: Indices = np.empty(0, np.intp)

    def take(self, count: int) -> Indices:
        """Return the next `count` indices; fewer at the end of an epoch, but never a single one.

        Indices past the last new sample are those of replayed samples, which are drawn at random.
        """
        if len(self._remaining) < 2:
            self._remaining = self._rng.permutation(len(self.samples)).astype(np.intp)
        replayed = 0 if self.replayed is None else round(self.replayed_share * count)
        taken, self._remaining = self._remaining[: count - replayed], self._remaining[count - replayed :]
        if self.replayed is None or not replayed:
            return taken
        drawn = self._rng.integers(len(self.replayed), size=min(replayed, len(taken)))
        return self._rng.permutation(np.concatenate([taken, len(self.samples) + drawn])).astype(np.intp)

    def new_samples(self, indices: Indices) -> int:
        """Return how many of these samples are new rather than replayed."""
        return int((indices < len(self.samples)).sum())

    def batch(self, indices: Indices) -> Batch:
        """Return the samples at these indices, new ones first."""
        is_new = indices < len(self.samples)
        if self.replayed is None or is_new.all():
            return self.samples.batch(indices)
        new, old = self.samples.batch(indices[is_new]), self.replayed.batch(indices[~is_new] - len(self.samples))
        return tuple(_joined(first, second) for first, second in zip(new, old))


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate two batches; keeps the memory format of the first."""
    if not len(first) or not len(second):
        return first if len(first) else second
    return torch.cat([first, second])


@dataclass(frozen=True)
class Reference:
    """Samples of the data that the model was trained for: some to be judged by, others to replay while training."""

    judged: Samples
    replayed: Samples

    def with_dtype(self, dtype: torch.dtype) -> Reference:
        """Return the same samples with floating-point inputs of this type."""
        return Reference(replace(self.judged, dtype=dtype), replace(self.replayed, dtype=dtype))

    def with_channels_last(self) -> Reference:
        """Return the same samples with images in channels-last memory format (NHWC)."""
        return Reference(replace(self.judged, channels_last=True), replace(self.replayed, channels_last=True))


@dataclass(frozen=True)
class NewData:
    """The new data, split, and the reference set if there is one."""

    train: Samples
    validation: Samples
    reference: Reference | None = None

    def with_dtype(self, dtype: torch.dtype) -> NewData:
        """Return the same data with floating-point inputs of this type."""
        train, validation = (replace(part, dtype=dtype) for part in (self.train, self.validation))
        return NewData(train, validation, None if self.reference is None else self.reference.with_dtype(dtype))

    def with_channels_last(self) -> NewData:
        """Return the same data with images in channels-last memory format (NHWC)."""
        train, validation = (replace(part, channels_last=True) for part in (self.train, self.validation))
        return NewData(train, validation, None if self.reference is None else self.reference.with_channels_last())

    @property
    def has_labels(self) -> bool:
        """Whether the new data has targets."""
        return not isinstance(self.train.arrays[-1], MissingTargets)

    @property
    def skipped(self) -> int:
        """Number of rows with NaN or infinity that were met so far."""
        return len(self.train.skipped) + len(self.validation.skipped)


def split_reference(data: Data, device: torch.device) -> Reference:
    """Split a reference set into halves with the same class proportions; raises as `split_new_data` does."""
    arrays = _check_arrays(data.train)
    _check_count(len(arrays[-1]))
    samples = _stratified(arrays, device)
    targets = _classes(arrays)
    ranks = np.arange(len(samples)) if targets is None else _ranks_in_class(targets[samples.rows])
    judged, replayed = (samples.rows[ranks % 2 == half] for half in (0, 1))
    return Reference(replace(samples, rows=judged), replace(samples, rows=replayed, skipped=set()))


def _ranks_in_class(targets: NDArray[np.int64]) -> Indices:
    """Return for each target how many equal ones come before it."""
    ranks = np.empty(len(targets), np.intp)
    for label in np.unique(targets):
        members = np.flatnonzero(targets == label)
        ranks[members] = np.arange(len(members))
    return ranks


def split_new_data(data: Data, device: torch.device, reference: Reference | None = None) -> NewData:
    """Split off validation samples, unless the data has a validation split.

    Raises:
        DatasetError: The arrays are malformed or have too few samples.
    """
    train = _check_arrays(_with_targets(data.train))
    if data.validation is not None:
        validation = _check_arrays(_with_targets(data.validation))
        if isinstance(validation[-1], MissingTargets) != isinstance(train[-1], MissingTargets):
            raise DatasetError("the new data has labels in one split alone; give both with labels, or both without")
        _check_count(len(train[-1]))
        return NewData(_stratified(train, device), _stratified(validation, device), reference)
    _check_count(len(train[-1]))
    samples = _stratified(train, device)
    held_out = max(1, round(VALIDATION_SHARE * len(samples)))
    return NewData(
        Samples(train, samples.rows[held_out:], device), Samples(train, samples.rows[:held_out], device), reference
    )


def _check_count(count: int) -> None:
    if count < MIN_SAMPLES:
        raise DatasetError(f"new data needs at least {MIN_SAMPLES} samples, some of them for validation, got {count}")


def _with_targets(part: Any) -> Any:
    """Return a split; one of a single array gets `MissingTargets`."""
    if isinstance(part, (tuple, list)) and len(part) == 1:
        part = part[0]
    if isinstance(part, (np.ndarray, Tensor)) and len(part.shape) > 1:
        return part, MissingTargets(len(part))
    return part


def _check_arrays(part: Any) -> tuple[Any, ...]:
    if (columns := dataset_columns(part)) is not None:
        return columns
    if isinstance(part, Sequence) and not isinstance(part, str):
        arrays = tuple(part)
        if len(arrays) >= 2 and all(getattr(array, "shape", ()) for array in arrays):
            for kind in (array.dtype for array in arrays if isinstance(array, np.ndarray)):
                if kind.kind in "OSUV":
                    raise DatasetError(f"new data must be numbers, such as classes from 0 on, got an array of {kind}")
            lengths = {len(array) for array in arrays}
            if len(lengths) == 1 and lengths != {0}:
                return arrays
            raise DatasetError(f"inputs and targets must have equal, non-zero lengths, got {sorted(lengths)}")
    raise DatasetError(
        "new data must be a tuple of arrays or tensors of equal length, inputs first and targets last, a torch "
        "Dataset or DataLoader of such items, or a single array of inputs without labels"
    )


def _stratified(arrays: tuple[Any, ...], device: torch.device) -> Samples:
    """Return all rows, shuffled so that every prefix has about the class proportions of the whole."""
    order = np.random.RandomState(0).permutation(len(arrays[-1]))
    targets = _classes(arrays)
    if targets is None:
        return Samples(arrays, order.astype(np.intp), device)
    position = np.empty(len(targets))
    for label in np.unique(targets):
        members = order[targets[order] == label]
        position[members] = (np.arange(len(members)) + 0.5) / len(members)
    return Samples(arrays, order[np.argsort(position[order], kind="stable")].astype(np.intp), device)


def _classes(arrays: tuple[Any, ...]) -> NDArray[np.int64] | None:
    """Read all targets, if they are classes; None, without reading them, if they are not."""
    first = _tensor(arrays[-1], np.arange(1))
    if isinstance(arrays[-1], MissingTargets) or first.dim() > 1 or first.is_floating_point():
        return None
    return np.asarray(_tensor(arrays[-1], np.arange(len(arrays[-1]))))


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
