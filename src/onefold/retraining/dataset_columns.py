"""A torch `Dataset` as arrays: rows of its items, read when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
            items = [self.dataset[int(row)] for row in rows]
            self._columns = [torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*items)]
            self._rows = rows.copy()
        return self._columns


class DatasetColumn:
    """One column of a dataset, such as its inputs."""

    def __init__(self, reader: DatasetReader, index: int) -> None:
        self._reader, self._index = reader, index
        first = torch.as_tensor(reader.dataset[0][index])
        self.shape: tuple[int, ...] = (len(reader.dataset), *first.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows) -> Tensor:
        return self._reader.columns(rows)[self._index]


def dataset_columns(part: Any) -> tuple[Any, ...] | None:
    """Return the columns of a torch `Dataset` or `DataLoader`, targets last; None for anything else.

    Of a `DataLoader` only the dataset counts: batches are planned.
    """
    dataset: Any = part.dataset if isinstance(part, torch.utils.data.DataLoader) else part
    if isinstance(dataset, (Sequence, Tensor, np.ndarray)):
        return None
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or not len(dataset):
        return None
    first = dataset[0]
    if not isinstance(first, (tuple, list)) or len(first) < 2:
        return None
    reader = DatasetReader(dataset)
    columns: list[Any] = [DatasetColumn(reader, index) for index in range(len(first))]
    targets = getattr(dataset, "targets", None)
    is_transformed = getattr(dataset, "target_transform", None) is not None
    if targets is not None and not is_transformed and len(targets) == len(dataset):  # known without loading any item
        columns[-1] = torch.as_tensor(targets)
    return tuple(columns)
