"""A torch `Dataset` as arrays: rows of its items, read when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onefold.arrays.missing_targets import MissingTargets
from onefold.vocabulary.errors import DatasetError

Rows = NDArray[np.intp]


class DatasetReader:
    """Read items of a dataset; the latest ones are kept, since their columns are asked for one after the other."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._rows: Rows | None = None
        self._columns: list[Tensor] = []

    def columns(self, rows: Rows) -> list[Tensor]:
        """Return the columns of these items, each stacked."""
        if self._rows is None or not np.array_equal(self._rows, rows):
            first, *others = [self.item(int(row)) for row in rows]
            shapes = [part.shape for part in first]
            if any([part.shape for part in item] != shapes for item in others):
                raise DatasetError("the items of the dataset have different shapes; crop or pad them to one")
            self._columns = [torch.stack(parts) for parts in zip(first, *others)]
            self._rows = rows.copy()
        return self._columns

    def item(self, row: int) -> list[Tensor]:
        """Return the parts of an item. Raises DatasetError if it cannot be read, or its parts are no tensors."""
        try:
            item = self.dataset[row]
            return [torch.as_tensor(part) for part in (item if isinstance(item, (tuple, list)) else (item,))]
        except MemoryError:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DatasetError(
                f"item {row} of the dataset cannot be read: {reason}; its parts must be tensors, arrays or numbers"
            ) from error


class DatasetColumn:
    """One column of a dataset, such as its inputs."""

    def __init__(self, reader: DatasetReader, index: int) -> None:
        self._reader, self._index = reader, index
        self.shape: tuple[int, ...] = (len(reader.dataset), *reader.item(0)[index].shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows) -> Tensor:
        return self._reader.columns(rows)[self._index]


def dataset_columns(part: Any) -> tuple[Any, ...] | None:
    """Return the columns of a torch `Dataset` or `DataLoader`, targets last; None for anything else.

    Of a `DataLoader` only the dataset counts: batches are planned. Items of a single part have no targets.
    """
    dataset: Any = part.dataset if isinstance(part, torch.utils.data.DataLoader) else part
    if isinstance(dataset, (Sequence, Tensor, np.ndarray)):
        return None
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
        return None
    reader = DatasetReader(dataset)
    columns: list[Any] = [DatasetColumn(reader, index) for index in range(len(reader.item(0)))]
    if len(columns) == 1:
        return columns[0], MissingTargets(len(dataset))
    targets = getattr(dataset, "targets", None)
    is_transformed = getattr(dataset, "target_transform", None) is not None
    if targets is not None and not is_transformed and len(targets) == len(dataset):  # known without loading any item
        columns[-1] = torch.as_tensor(targets)
    return tuple(columns)
