"""The new data: what to learn from, and what is kept back to judge by."""

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

KEPT_BACK = 0.2  # of the new data, where it comes without a validation part
FEWEST = 5  # samples that can be parted at all

Indices = NDArray[np.intp]
Batch = tuple[Tensor, ...]
_LAST = torch.channels_last


@dataclass(frozen=True, eq=False)
class Samples:
    """Arrays of equal length, the targets last, of which some rows belong to it; rows are read when they are needed."""

    arrays: tuple[Any, ...]
    rows: Indices
    device: torch.device
    channels_last: bool = False  # how pictures lie in memory: convolutions on a processor are faster so

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, places: Indices | slice) -> Batch:
        """Some of them, by place, on the accelerator."""
        rows = self.rows[places]
        found = (_tensor(array, rows).to(self.device) for array in self.arrays)
        return tuple(
            one.contiguous(memory_format=_LAST) if self.channels_last and one.dim() == 4 else one for one in found
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """All of them, as they stand."""
        for start in range(0, len(self), size):
            yield self.batch(slice(start, start + size))

    def share(self, count: int) -> Samples:
        """The first so many; they stand in an order whose every beginning has the classes' proportions."""
        return replace(self, rows=self.rows[:count])


class BatchOrder:
    """Every sample once, in some order, and then in another."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self.samples = samples
        self._random = np.random.default_rng(seed)
        self._left: Indices = np.empty(0, np.intp)

    def following(self, count: int) -> Indices:
        """The places of the next `count` samples; fewer at the end of a pass, but never a single one."""
        if len(self._left) < 2:
            self._left = self._random.permutation(len(self.samples)).astype(np.intp)
        found, self._left = self._left[:count], self._left[count:]
        return found


@dataclass(frozen=True)
class NewData:
    """The new data in two parts."""

    train: Samples
    validation: Samples

    def with_channels_last(self) -> NewData:
        """The same with pictures laid out channel by channel within each pixel."""
        return NewData(replace(self.train, channels_last=True), replace(self.validation, channels_last=True))


def split_new_data(data: Data, device: torch.device) -> NewData:
    """Parts the data, unless it comes with a validation part. Raises DatasetError for what cannot be learned from."""
    train = _arrays(data.train)
    if data.validation is not None:
        validation = _arrays(data.validation)
        _check_enough(len(train[-1]))
        return NewData(_in_proportion(train, device), _in_proportion(validation, device))
    _check_enough(len(train[-1]))
    whole = _in_proportion(train, device)
    back = max(1, round(KEPT_BACK * len(whole)))
    return NewData(Samples(train, whole.rows[back:], device), Samples(train, whole.rows[:back], device))


def _check_enough(count: int) -> None:
    if count < FEWEST:
        raise DatasetError(
            f"the new data must have {FEWEST} samples at least, so that some can be kept back to judge by, "
            f"but has {count}"
        )


def _arrays(part: Any) -> tuple[Any, ...]:
    if isinstance(part, Sequence) and not isinstance(part, str):
        arrays = tuple(part)
        if len(arrays) >= 2 and all(getattr(array, "shape", ()) for array in arrays):
            lengths = {len(array) for array in arrays}
            if len(lengths) == 1 and lengths != {0}:
                return arrays
            raise DatasetError(f"inputs and targets must be equally many and not none, but there are {sorted(lengths)}")
    raise DatasetError(
        "new data is a tuple of arrays or tensors of equal length, the inputs first and the targets last"
    )


def _in_proportion(arrays: tuple[Any, ...], device: torch.device) -> Samples:
    """All rows, in an order whose every beginning has the proportions of the whole."""
    targets = np.asarray(_tensor(arrays[-1], np.arange(len(arrays[-1]))))
    order = np.random.RandomState(0).permutation(len(targets))
    if targets.ndim > 1 or targets.dtype.kind == "f":
        return Samples(arrays, order.astype(np.intp), device)
    place = np.empty(len(targets))
    for label in np.unique(targets):
        members = order[targets[order] == label]
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    return Samples(arrays, order[np.argsort(place[order], kind="stable")].astype(np.intp), device)


def _tensor(array: Any, rows: Indices) -> Tensor:
    if isinstance(array, Tensor):
        chosen = array[torch.from_numpy(rows)]
        if chosen.dtype == torch.float64:
            return chosen.float()
        return chosen.long() if chosen.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) else chosen
    found = np.ascontiguousarray(array[rows])
    if found.dtype.kind == "u" or found.dtype in (np.int8, np.int16, np.int32):
        found = found.astype(np.int64)
    elif found.dtype == np.float64:
        found = found.astype(np.float32)
    return torch.from_numpy(found)
