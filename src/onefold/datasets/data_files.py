"""Locate, download and read the files of datasets.

A file is searched in `$ONEFOLD_DATA`, then in the user's cache. A dataset with a public home is then downloaded into
the cache once. Missing and corrupt files raise `DatasetError` with instructions.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from onefold.arrays import files
from onefold.arrays.headers import READ_ERRORS, ArrayHeader, open_regular_file
from onefold.meter.free_memory import free_bytes
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.quantities import size

Arrays = dict[str, NDArray[Any]]
LINE_BYTES = 16 << 20  # the longest row of a text file
TEXT_EXPANSION = 12  # bytes of memory per byte of text while it is split into words


@dataclass(frozen=True, eq=False)
class DataFile:
    """A dataset's file: its name, its schema and its origin. Compared by identity.

    `fields` maps each array of an npz to its type, such as "uint8 (N, 28, 28)", or each key of a JSON row to a
    description. `download`, if given, fetches the arrays from the dataset's home.
    """

    name: str
    fields: Mapping[str, str]
    origin: str
    download: Callable[[], Arrays] | None = field(default=None, repr=False)


def search_folders() -> tuple[Path, ...]:
    """Return the folders that are searched, in order; the last one is the user's cache."""
    configured = os.environ.get("ONEFOLD_DATA")
    cache = Path(platformdirs.user_cache_dir("onefold")) / "data"
    return (Path(configured).expanduser(), cache) if configured else (cache,)


def find(file: DataFile) -> Path:
    """Return the path of a file, after downloading it into the cache if necessary and possible.

    Raises DatasetError if the file is in no search folder and cannot be downloaded.
    """
    for folder in search_folders():
        if (folder / file.name).is_file():
            return folder / file.name
    if file.download is None:
        raise DatasetError(f"{file.name} is missing: {_searched()}. {_instructions(file)}")
    try:
        arrays = file.download()
    except DatasetError as error:
        raise DatasetError(f"{file.name} is missing: {_searched()}, and {error}. {_instructions(file)}") from error
    return _write_npz(arrays, search_folders()[-1] / file.name)


def read_arrays(file: DataFile) -> Arrays:
    """Return the arrays of an npz file; raises DatasetError if one lacks the declared dtype or shape."""
    path = find(file)
    try:
        headers = files.array_headers(path, file.fields)
        for name, expected in file.fields.items():
            if (actual := _array_type(headers[name])) != expected:
                raise DatasetError(f"{name} in {path} must be {expected}, but is {actual}")
        return files.read_arrays(path, file.fields, advice="free memory, or put a smaller one there")
    except DatasetError as error:
        raise DatasetError(f"{error}. {_instructions(file)}") from error


def read_rows(file: DataFile, path: Path) -> list[dict[str, Any]]:
    """Return the rows of the jsonl.gz file at `path`; raises DatasetError if one lacks a declared key."""
    try:
        rows = [json.loads(line) for line in _lines(path)]
    except READ_ERRORS as error:
        raise DatasetError(f"{path} is corrupt ({error}); remove it. {_instructions(file)}") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not file.fields.keys() <= row.keys():
            raise DatasetError(f"row {number} of {path} lacks one of {', '.join(file.fields)}. {_instructions(file)}")
    return rows


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a gzipped file; raise DatasetError as soon as they are too much for the memory.

    The length of the text is known only when all of it was read: the one that gzip stores may be false.
    """
    limit, read_bytes = free_bytes() // TEXT_EXPANSION, 0
    with open_regular_file(path) as compressed, gzip.open(compressed, "rb") as lines:
        while line := lines.readline(LINE_BYTES + 1):
            read_bytes += len(line)
            if len(line) > LINE_BYTES:
                raise DatasetError(f"{path} has a row of more than {size(LINE_BYTES)}; write shorter rows")
            if read_bytes > limit:
                raise DatasetError(
                    f"{path} has more than {size(limit)} of text, for which {size(limit * TEXT_EXPANSION)} of free "
                    "memory do not suffice; free memory, or put fewer rows there"
                )
            yield line


def _write_npz(arrays: Arrays, path: Path) -> Path:
    """Write an npz file atomically: to a temporary folder, then by rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as part:
            np.savez_compressed(Path(part) / "new.npz", **arrays)  # type: ignore[arg-type]
            (Path(part) / "new.npz").replace(path)
    except OSError as error:
        raise DatasetError(f"{path} cannot be written: {error}; set ONEFOLD_DATA to a folder that has it") from error
    return path


def _array_type(array: ArrayHeader) -> str:
    return f"{array.dtype} ({', '.join(['N', *map(str, array.shape[1:])])})"


def _searched() -> str:
    unset = "" if os.environ.get("ONEFOLD_DATA") else " (ONEFOLD_DATA is not set)"
    return f"searched {' and '.join(map(str, search_folders()))}{unset}"


def _instructions(file: DataFile) -> str:
    schema = ", ".join(f"{name}: {kind}" for name, kind in file.fields.items())
    return f"Put {file.name} into the folder named by $ONEFOLD_DATA, with {schema}. Origin: {file.origin}"
