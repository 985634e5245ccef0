"""Where the files of a data set are found, and how they are read.

A file is looked for in `$ONEFOLD_DATA`, then in the user's cache. A set that has a home in the world is then downloaded
into the cache, once. Every reader turns a missing or a broken file into a `DatasetError` that says what to do.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from onefold.vocabulary.errors import DatasetError

Arrays = dict[str, NDArray[Any]]
BROKEN = (OSError, EOFError, ValueError, TypeError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class Source:
    """A file of a data set: its name, what must be in it, and where it comes from.

    `fields` gives each array of an npz as "uint8 (N, 28, 28)", or each key of a json row with what it means; `download`
    fetches the arrays from the home of the set. Each source is a constant of its module and equal to itself alone.
    """

    file: str
    fields: Mapping[str, str]
    origin: str
    download: Callable[[], Arrays] | None = field(default=None, repr=False)


def folders() -> tuple[Path, ...]:
    """Where files are looked for, in this order; the last one is the user's cache."""
    chosen = os.environ.get("ONEFOLD_DATA")
    cache = Path(platformdirs.user_cache_dir("onefold")) / "data"
    return (Path(chosen).expanduser(), cache) if chosen else (cache,)


def find(source: Source) -> Path:
    """The path of the file, downloaded into the cache when it is in no folder but has a home."""
    for folder in folders():
        if (folder / source.file).is_file():
            return folder / source.file
    if source.download is None:
        raise DatasetError(f"{source.file} is missing: {_searched()}. {_advice(source)}")
    try:
        arrays = source.download()
    except DatasetError as error:
        raise DatasetError(f"{source.file} is missing: {_searched()}, and {error}. {_advice(source)}") from error
    return _keep(arrays, folders()[-1] / source.file)


def read_arrays(source: Source) -> Arrays:
    """The arrays of an npz file, each of the kind and shape that the source promises."""
    path = find(source)
    try:
        # Opened here, because numpy leaves a file that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in source.fields}
    except BROKEN as error:
        raise DatasetError(f"{path} is broken ({error}); remove it. {_advice(source)}") from error
    for name, wanted in source.fields.items():
        if (found := _kind(arrays[name])) != wanted:
            raise DatasetError(f"{name} in {path} must be {wanted}, but is {found}. {_advice(source)}")
    return arrays


def read_rows(source: Source, path: Path) -> list[dict[str, Any]]:
    """The rows of a jsonl.gz file at `path`, each with all the keys that the source promises."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
    except BROKEN as error:
        raise DatasetError(f"{path} is broken ({error}); remove it. {_advice(source)}") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not source.fields.keys() <= row.keys():
            raise DatasetError(f"row {number} of {path} lacks one of {', '.join(source.fields)}. {_advice(source)}")
    return rows


def _keep(arrays: Arrays, path: Path) -> Path:
    """Writes beside the place and renames, so that nobody ever meets half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as part:
            np.savez_compressed(Path(part) / "new.npz", **arrays)  # type: ignore[arg-type]
            (Path(part) / "new.npz").replace(path)
    except OSError as error:
        raise DatasetError(f"{path} cannot be written: {error}; set ONEFOLD_DATA to a folder that has it") from error
    return path


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} ({', '.join(['N', *map(str, array.shape[1:])])})"


def _searched() -> str:
    unset = "" if os.environ.get("ONEFOLD_DATA") else " (ONEFOLD_DATA is not set)"
    return f"looked in {' and '.join(map(str, folders()))}{unset}"


def _advice(source: Source) -> str:
    content = ", ".join(f"{name}: {kind}" for name, kind in source.fields.items())
    return f"Put {source.file} in the folder that $ONEFOLD_DATA names; it holds {content}. Origin: {source.origin}"
