"""Folders of new data for a deployed model.

    new/inputs.npy                a row per sample; inputs0.npy, inputs1.npy, … for a network with several inputs
    new/targets.npy               a row per sample; may be missing where a model is adapted without labels
    new/validation_inputs.npy     optional, with validation_targets.npy; test_… likewise

Rows are read lazily, since the data may be larger than the memory of a small device. A single .npz file with the same
names works as well; a compressed one is read into memory, if it fits.
"""

from __future__ import annotations

import math
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from onefold.arrays.files import check_memory, read_arrays
from onefold.arrays.headers import READ_ERRORS, ArrayHeader, open_regular_file, read_headers
from onefold.arrays.missing_targets import MissingTargets
from onefold.datasets.rows import Rows, check_numbers, check_rows
from onefold.vocabulary.errors import DatasetError
from onefold.vocabulary.workload import Data

PARTS = ("", "validation_", "test_")
NAME = re.compile(r"(validation_|test_|)(inputs\d*|targets)")
UNFINISHED = ".part-"
NEEDED = "new data consists of inputs.npy (or inputs0.npy, inputs1.npy, …) and targets.npy, with a row per sample"
SMALLER = "save it with numpy.savez or as a folder of .npy files, whose rows are read one by one"
CHUNK_BYTES = 1 << 20  # written at once
Openers = Mapping[str, Callable[[], Any]]


def read_data(path: str | Path, memory_bytes: int | None = None, *, needs_targets: bool = True) -> Data:
    """Read a folder of new data, or such an .npz file; the arrays are `Rows`.

    Unless it needs targets, data may be without: the last array is `MissingTargets` then.

    `memory_bytes` is what the arrays of a compressed .npz file may take, which are read into memory, and what a single
    row of the others may take; by default what is free.

    Raises:
        DatasetError: Files are missing, malformed or inconsistent, or need too much memory.
    """
    path = Path(path)
    arrays = _arrays_of(path, memory_bytes)
    has_targets = any(name.endswith("targets") for name in arrays)
    train, validation, test = (
        _part(path, prefix, arrays, has_targets=has_targets or needs_targets) for prefix in PARTS
    )
    for part in (train, validation, test):
        row_bytes = sum(math.prod(array.shape[1:]) * array.dtype.itemsize for array in part or ())
        check_memory(f"a row of {path}", row_bytes, memory_bytes, "write smaller samples")
    if train is None:
        raise DatasetError(f"{path} has no inputs.npy; {NEEDED}")
    for prefix, part in zip(PARTS[1:], (validation, test)):
        if part is not None and _sample_types(part) != _sample_types(train):
            raise DatasetError(
                f"the {prefix.rstrip('_')} split of {path} has samples of {_sample_types(part)}, the train split of "
                f"{_sample_types(train)}; write both in the same format"
            )
    return Data(train, validation, test)


def write_data(folder: str | Path, data: Data) -> Path:
    """Write data into a folder, replacing new data that is already there, and return its path.

    `targets.npy` is removed first and written last, so that an incomplete folder is never read as complete.

    Raises:
        DatasetError: The data is malformed, or the folder has other content or cannot be written.
    """
    folder = Path(folder)
    check_destination(folder)
    given = zip(PARTS, (data.train, data.validation, data.test))
    parts = {prefix: part for prefix, part in given if part is not None or not prefix}
    for part in parts.values():
        _check_part(part)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as unfinished:
            for prefix, part in parts.items():
                for name, array in zip(_names(len(part) - 1), part):
                    _write(Path(unfinished) / f"{prefix}{name}.npy", array)
            for path in sorted(folder.glob("*.npy"), key=_is_targets, reverse=True):
                path.unlink()
            for path in sorted(Path(unfinished).iterdir(), key=_is_targets):
                path.replace(folder / path.name)
    except OSError as error:
        raise DatasetError(f"cannot write {folder}: {error}; choose another folder") from error
    return folder


def check_destination(folder: Path) -> None:
    """Raise DatasetError if writing new data there would overwrite something else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DatasetError(f"new data is written to a folder, but {folder} is a file; choose another path")
    if foreign := sorted(path.name for path in folder.iterdir() if not _is_ours(path)):
        raise DatasetError(f"{folder} has other files in it, such as {foreign[0]}; choose a new or an empty folder")


def _is_ours(path: Path) -> bool:
    is_array = path.suffix == ".npy" and NAME.fullmatch(path.stem) is not None
    return is_array or path.name.startswith(UNFINISHED)


def _is_targets(path: Path) -> bool:
    return path.stem == "targets"


def _names(inputs: int) -> list[str]:
    """Return the names of the arrays of a split, in order."""
    return [*(["inputs"] if inputs == 1 else [f"inputs{number}" for number in range(inputs)]), "targets"]


def _arrays_of(source: Path, memory_bytes: int | None) -> Openers:
    """Return a function per array that opens it."""
    if source.is_dir():
        return {path.stem: partial(Rows, path) for path in source.glob("*.npy")}
    if not source.is_file():
        raise DatasetError(f"there is no folder {source}; {NEEDED}")
    if not zipfile.is_zipfile(source):
        raise DatasetError(f"{source} is neither a folder nor an .npz file; {NEEDED}")
    with open_regular_file(source) as file:
        headers = read_headers(file, source, lambda name: NAME.fullmatch(Path(name).name) is not None)
    for header in headers.values():
        check_rows(header)
    compressed_bytes = sum(header.nbytes for header in headers.values() if header.is_compressed)
    check_memory(f"{source}, which is compressed,", compressed_bytes, memory_bytes, SMALLER)
    return {Path(name).name: partial(_member, source, name, header) for name, header in headers.items()}


def _member(path: Path, name: str, header: ArrayHeader) -> Any:
    """Open an array of an .npz file: lazily if it is stored uncompressed."""
    if header.is_compressed or header.member is None:
        return read_arrays(path, [name], memory_bytes=header.nbytes)[name]
    try:
        with path.open("rb") as file:
            file.seek(header.member.header_offset + 26)  # lengths of the name and the extra field before the content
            start = header.member.header_offset + 30 + sum(struct.unpack("<2H", file.read(4)))
    except READ_ERRORS as error:
        raise DatasetError(f"{header.label} is corrupt ({error}); write it again") from error
    return Rows(path, start, header.label)


def _part(path: Path, prefix: str, openers: Openers, *, has_targets: bool) -> tuple[Any, ...] | None:
    own = {match[2] for match in map(NAME.fullmatch, openers) if match is not None and match[1] == prefix}
    if not own:
        return None
    inputs = own - {"targets"}
    names = _names(1 if not inputs or "inputs" in inputs else len(inputs))
    names = names if has_targets else names[:-1]
    if missing := [name for name in names if name not in own]:
        raise DatasetError(f"{path} has no {prefix}{missing[0]}.npy; {NEEDED}")
    if foreign := sorted(own - {*names}):
        raise DatasetError(f"{path} has {prefix}inputs.npy and also {prefix}{foreign[0]}.npy; remove one of them")
    arrays = tuple(openers[prefix + name]() for name in names)
    if len({len(array) for array in arrays}) > 1:
        counts = ", ".join(f"{prefix}{name}.npy {len(array)}" for name, array in zip(names, arrays))
        raise DatasetError(f"the arrays of {path} must have equal lengths, got {counts}; write them again")
    return arrays if has_targets else (*arrays, MissingTargets(len(arrays[0])))


def _sample_types(part: tuple[Any, ...]) -> str:
    return ", ".join(f"{array.dtype} {tuple(array.shape[1:])}" for array in part)


def _check_part(part: Any) -> None:
    if not isinstance(part, (tuple, list)) or len(part) < 2 or not all(hasattr(array, "shape") for array in part):
        raise DatasetError("each split must be a tuple of arrays, targets last")
    if len({len(array) for array in part}) > 1:
        raise DatasetError(f"the arrays of a split must have equal lengths, got {[len(array) for array in part]}")
    for array in part:
        check_numbers("an array of the data", tuple(array.shape), np.asarray(array[:1]).dtype)


def _write(path: Path, array: Any) -> None:
    """Write an array, or `Rows`, in chunks of rows."""
    first = np.asarray(array[:1])
    rows = max(1, CHUNK_BYTES // first.nbytes)
    kind = {"descr": npy.dtype_to_descr(first.dtype), "fortran_order": False, "shape": tuple(array.shape)}
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, kind)
        for start in range(0, len(array), rows):
            file.write(np.ascontiguousarray(array[start : start + rows]).data)
