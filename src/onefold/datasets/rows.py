"""An array in a file whose rows are read when they are asked for."""

from __future__ import annotations

import math
import os
import weakref
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from onefold.datasets.folder import BROKEN
from onefold.vocabulary.errors import DatasetError


class Rows:
    """The rows of an .npy file: `rows[indices]`, `rows[3:7]` and `rows[3]` are arrays, `len(rows)` is their number.

    Rows are copied into the array that wants them, and the file is never mapped: mapped pages would count as memory of
    the process. Several threads may read at once; another process that is handed them opens the file itself.
    """

    def __init__(self, path: str | Path, start: int = 0, called: str = "") -> None:
        """Opens the file; `start` is where the .npy begins inside of a larger one, and `called` its name there."""
        self.path, self.called = Path(path), called or str(path)
        self._origin = start
        try:
            self._file = os.open(self.path, os.O_RDONLY)
            self._closing = weakref.finalize(self, os.close, self._file)
            with os.fdopen(self._file, "rb", closefd=False) as file:
                file.seek(start)
                self.shape, self.dtype = read_header(file, self.called)
                self._start = file.tell()
        except OSError as error:
            raise DatasetError(f"{self.called} cannot be read: {error}") from error
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        missing = self._start + len(self) * self._row_bytes - os.fstat(self._file).st_size
        if missing > 0:
            raise DatasetError(f"{self.called} is cut off: {missing} bytes are missing; copy or write it again")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: Any) -> NDArray[Any]:
        if isinstance(wanted, (int, np.integer)):
            return self[np.array([wanted])].reshape(self.shape[1:])
        if isinstance(wanted, slice):
            places = np.arange(*wanted.indices(len(self)))
        else:
            places = np.asarray(wanted)
            if places.dtype == bool:
                if len(places) != len(self):
                    raise IndexError(f"{self.called} has {len(self)} rows, but {len(places)} are wanted or not")
                places = np.flatnonzero(places)
        into = np.empty((len(places), *self.shape[1:]), self.dtype)
        self.read(places, into)
        return into

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of it, in memory."""
        if copy is False:
            raise ValueError("the rows of a file become an array by being copied")
        return self[:] if dtype is None else self[:].astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.path, self._origin, self.called)

    def __repr__(self) -> str:
        return f"Rows({self.called}, {self.dtype} {self.shape})"

    @property
    def ndim(self) -> int:
        """Dimensions, with that of the rows."""
        return len(self.shape)

    def read(self, places: NDArray[Any], into: NDArray[Any]) -> None:
        """Copies the rows at these places into the caller's array, which has their shape and kind, in C order."""
        shape = (len(places), *self.shape[1:])
        if into.dtype != self.dtype or into.shape != shape or not into.flags.c_contiguous:
            raise ValueError(f"the array to fill must be {self.dtype} {shape} in C order")
        if len(places) == 0:
            return
        places = np.asarray(places)
        if places.ndim != 1 or places.dtype.kind not in "iu":
            raise IndexError(f"rows are chosen by a line of whole numbers, but got {places.dtype} {places.shape}")
        places = places.astype(np.intp)
        if places.min() < -len(self) or places.max() >= len(self):
            raise IndexError(
                f"{self.called} has {len(self)} rows, but rows {places.min()} to {places.max()} are wanted"
            )
        places = np.where(places < 0, places + len(self), places)
        buffer = into.reshape(-1).view(np.uint8).data
        starts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        for first, end in pairwise(starts):  # rows that follow on each other in one go
            part = buffer[first * self._row_bytes : end * self._row_bytes]
            self._fill(part, self._start + int(places[first]) * self._row_bytes)

    def close(self) -> None:
        """Closes the file; nothing can be read any more."""
        self._closing()

    def _fill(self, buffer: memoryview, place: int) -> None:
        if not self._closing.alive:
            raise DatasetError(f"{self.called} is closed; open the data again to read them")
        while len(buffer):
            try:
                count = os.preadv(self._file, [buffer], place)
            except OSError as error:
                raise DatasetError(f"{self.called} cannot be read: {error}") from error
            if count == 0:
                raise DatasetError(f"{self.called} became shorter while it was read; write it again")
            buffer, place = buffer[count:], place + count


def read_header(file: IO[bytes], called: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and kind of the .npy that begins here, whose values can be used; leaves the file where they begin."""
    try:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, is_fortran, dtype = readers[npy.read_magic(file)](file)
    except BROKEN as error:
        raise DatasetError(f"{called} is not an .npy file ({error}); write it with numpy.save") from error
    check_numbers(called, shape, dtype)
    if is_fortran and len(shape) > 1:
        raise DatasetError(
            f"{called} is in Fortran order, so its rows lie scattered; write it again with "
            "numpy.save(file, numpy.ascontiguousarray(array))"
        )
    return shape, dtype


def check_numbers(called: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raises DatasetError unless this is an array of numbers with at least one row."""
    if dtype.kind not in "biuf" or not dtype.isnative:
        raise DatasetError(
            f"{called} must hold numbers in this machine's byte order, but holds {dtype.str}; write it again with "
            "array.astype('float32') or array.astype('int64')"
        )
    if not shape or 0 in shape:
        raise DatasetError(f"{called} is empty: its shape is {shape}; give it a row for each sample")
