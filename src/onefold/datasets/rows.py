"""An array in an .npy file whose rows are read on demand."""

from __future__ import annotations

import math
import os
import weakref
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from onefold.arrays import headers
from onefold.vocabulary.errors import DatasetError


class Rows:
    """A lazy array over an .npy file: `rows[indices]`, `rows[3:7]` and `rows[3]` read those rows into memory.

    The file is read, not memory-mapped, since mapped pages would count as memory of the process. Several threads may
    read at once; a pickled copy opens the file again.
    """

    def __init__(self, path: str | Path, offset: int = 0, label: str = "") -> None:
        """Open the file; `offset` is where the .npy starts inside a larger file, `label` its name in messages."""
        self.path, self.label = Path(path), label or str(path)
        self._offset = offset
        try:
            self._file = headers.open_descriptor(self.path, self.label)
            self._closing = weakref.finalize(self, os.close, self._file)
            with os.fdopen(self._file, "rb", closefd=False) as file:
                file.seek(offset)
                self.shape, self.dtype = read_header(file, self.label)
                self._start = file.tell()
        except OSError as error:
            raise DatasetError(f"{self.label} cannot be read: {error}") from error
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        missing = self._start + len(self) * self._row_bytes - os.fstat(self._file).st_size
        if missing > 0:
            raise DatasetError(f"{self.label} is truncated: {missing} bytes are missing; copy or write it again")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, (int, np.integer)):
            return self[np.array([index])].reshape(self.shape[1:])
        if isinstance(index, slice):
            indices = np.arange(*index.indices(len(self)))
        else:
            indices = np.asarray(index)
            if indices.dtype == bool:
                if len(indices) != len(self):
                    raise IndexError(f"{self.label} has {len(self)} rows, but the boolean mask has {len(indices)}")
                indices = np.flatnonzero(indices)
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        self.read(indices, out)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read the whole array into memory."""
        if copy is False:
            raise ValueError("rows of a file cannot become an array without a copy; pass copy=None or copy=True")
        return self[:] if dtype is None else self[:].astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.path, self._offset, self.label)

    def __repr__(self) -> str:
        return f"Rows({self.label}, {self.dtype} {self.shape})"

    @property
    def ndim(self) -> int:
        """Return the number of dimensions, including that of the rows."""
        return len(self.shape)

    def read(self, indices: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy the rows at `indices` into `out`, which must have their shape and dtype and be C-contiguous."""
        shape = (len(indices), *self.shape[1:])
        if out.dtype != self.dtype or out.shape != shape or not out.flags.c_contiguous:
            raise ValueError(f"out must be {self.dtype} {shape} in C order, but is {out.dtype} {out.shape}")
        if len(indices) == 0:
            return
        indices = np.asarray(indices)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise IndexError(f"row indices must be a 1-D array of integers, but got {indices.dtype} {indices.shape}")
        indices = indices.astype(np.intp)
        if indices.min() < -len(self) or indices.max() >= len(self):
            raise IndexError(
                f"{self.label} has {len(self)} rows, but got indices from {indices.min()} to {indices.max()}"
            )
        indices = np.where(indices < 0, indices + len(self), indices)
        buffer = out.reshape(-1).view(np.uint8).data
        starts = [0, *(np.flatnonzero(np.diff(indices) != 1) + 1).tolist(), len(indices)]
        for first, end in pairwise(starts):  # one read per run of consecutive rows
            part = buffer[first * self._row_bytes : end * self._row_bytes]
            self._fill(part, self._start + int(indices[first]) * self._row_bytes)

    def close(self) -> None:
        """Close the file; later reads raise DatasetError."""
        self._closing()

    def _fill(self, buffer: memoryview, position: int) -> None:
        if not self._closing.alive:
            raise DatasetError(f"{self.label} is closed; open the data again")
        while len(buffer):
            try:
                count = os.preadv(self._file, [buffer], position)
            except OSError as error:
                raise DatasetError(f"{self.label} cannot be read: {error}") from error
            if count == 0:
                raise DatasetError(f"{self.label} was truncated while it was read; write it again")
            buffer, position = buffer[count:], position + count


def read_header(file: IO[bytes], label: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of the .npy that starts here, and leave the file at its first value.

    Raises DatasetError if the values cannot be read row by row.
    """
    header = headers.read_header(file, label)
    check_rows(header)
    return header.shape, header.dtype


def check_rows(header: headers.ArrayHeader) -> None:
    """Raise DatasetError unless these are numbers that can be read row by row."""
    check_numbers(header.label, header.shape, header.dtype)
    if header.is_fortran and len(header.shape) > 1:
        raise DatasetError(
            f"{header.label} is in Fortran order, so its rows are not contiguous; write it again with "
            "numpy.save(file, numpy.ascontiguousarray(array))"
        )


def check_numbers(label: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise DatasetError unless this is a numeric array with at least one row."""
    if dtype.kind not in "biuf" or not dtype.isnative:
        raise DatasetError(
            f"{label} must hold numbers in native byte order, but holds {dtype.str}; write it again with "
            "array.astype('float32') or array.astype('int64')"
        )
    if not shape or 0 in shape:
        raise DatasetError(f"{label} is empty: its shape is {shape}; write one row per sample")
