"""Read the arrays of .npy and .npz files within a memory limit.

What the arrays take is computed from their headers and compared with the limit before anything is allocated. Every
read is bounded by what was computed, so that a small compressed file cannot fill the memory.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from onefold.arrays.headers import READ_ERRORS, ArrayHeader, open_regular_file, read_header, read_headers
from onefold.meter.free_memory import free_bytes
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.quantities import size

CHUNK_BYTES = 1 << 20  # read at once
FEWER_SAMPLES = "give a file with fewer samples"
Array = NDArray[Any]


def read_arrays(
    path: str | Path,
    names: Iterable[str] | None = None,
    *,
    rows: int | None = None,
    memory_bytes: int | None = None,
    advice: str = FEWER_SAMPLES,
) -> dict[str, Array]:
    """Return arrays of an .npz file by name, or the one of an .npy file, whose name is empty.

    Args:
        path: The file.
        names: The arrays to read; by default all.
        rows: Read at most the first rows of each array.
        memory_bytes: What the arrays may take together; by default what is free.
        advice: What to do about arrays that take more, for the message.

    Raises:
        DatasetError: The file is malformed, lacks an array, or needs too much memory.
    """
    path = Path(path)
    with open_regular_file(path) as file:
        headers = _headers(file, path, names)
        check_memory(str(path), sum(_bytes_to_read(header, rows) for header in headers.values()), memory_bytes, advice)
        with ExitStack() as stack:
            archive = None
            if any(header.member is not None for header in headers.values()):
                archive = stack.enter_context(zipfile.ZipFile(file))
            return {name: _read(file, archive, header, rows) for name, header in headers.items()}


def array_headers(path: str | Path, names: Iterable[str] | None = None) -> dict[str, ArrayHeader]:
    """Return the headers of the arrays that `read_arrays` would read."""
    with open_regular_file(Path(path)) as file:
        return _headers(file, Path(path), names)


def _headers(file: IO[bytes], path: Path, names: Iterable[str] | None) -> dict[str, ArrayHeader]:
    """Return the headers of these arrays; raises DatasetError if one is missing."""
    if names is None:
        return read_headers(file, path)
    wanted = list(names)
    headers = read_headers(file, path, wanted.__contains__)
    if missing := [name for name in wanted if name not in headers]:
        raise DatasetError(f"{path} has no array {missing[0]!r}; write it with {', '.join(wanted)}")
    return {name: headers[name] for name in wanted}


def check_samples(path: str | Path) -> None:
    """Raise DatasetError, without reading them, if the arrays of a file are malformed or need too much memory."""
    needed_bytes = sum(header.nbytes for header in array_headers(path).values())
    check_memory(str(path), needed_bytes, None, FEWER_SAMPLES)


def check_memory(label: str, needed_bytes: int, memory_bytes: int | None, advice: str) -> None:
    """Raise DatasetError if data needs more memory than the limit, by default what is free."""
    limit = free_bytes() if memory_bytes is None else memory_bytes
    if needed_bytes > limit:
        of_what = "are free" if memory_bytes is None else "are left within the limit"
        raise DatasetError(
            f"{label} needs {size(needed_bytes)} of memory, but {size(max(0, limit))} {of_what}; {advice}"
        )


def _rows(header: ArrayHeader, rows: int | None) -> int | None:
    """Return how many rows can be read alone; None for all."""
    if rows is None or not header.shape or (header.is_fortran and len(header.shape) > 1):
        return None
    return min(rows, header.shape[0])


def _bytes_to_read(header: ArrayHeader, rows: int | None) -> int:
    count = _rows(header, rows)
    return header.nbytes if count is None else count * header.row_bytes


def _read(file: IO[bytes], archive: zipfile.ZipFile | None, header: ArrayHeader, rows: int | None) -> Array:
    try:
        if archive is None or header.member is None:
            file.seek(0)
            return _read_values(file, header, rows)
        with archive.open(header.member) as content:
            return _read_values(content, header, rows)
    except READ_ERRORS as error:
        raise DatasetError(f"{header.label} is corrupt ({error}); write it again") from error
    except MemoryError as error:  # others may have used what was free
        raise DatasetError(f"{header.label} needs {size(header.nbytes)} of memory, which cannot be had") from error


def _read_values(content: IO[bytes], header: ArrayHeader, rows: int | None) -> Array:
    read_header(content, header.label)  # skips it
    count = _rows(header, rows)
    shape = header.shape if count is None else (count, *header.shape[1:])
    values = np.empty(math.prod(shape), header.dtype)
    left = values.view(np.uint8).data if values.nbytes else memoryview(b"")
    while left:
        chunk = content.read(min(CHUNK_BYTES, len(left)))
        if not chunk:
            raise EOFError(f"{len(left)} bytes are missing")
        left[: len(chunk)] = chunk
        left = left[len(chunk) :]
    if count is None:
        content.read(1)  # zipfile compares the checksum at the end
    array = values.reshape(shape[::-1]).T if header.is_fortran else values.reshape(shape)
    return array if rows is None or not array.ndim else array[:rows]
