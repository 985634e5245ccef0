"""Data sets shared between worker processes: written once as plain arrays, mapped by each, copied by none."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from onefold.vocabulary.errors import OnefoldError, StoreError, WorkloadError
from onefold.vocabulary.workload import Data, Workload

PARTS = ("train", "validation", "test")


def open_data(workload: Workload, folder: Path | None) -> Data:
    """The workload's data; its arrays come from `folder`, where the first process that needs them puts them.

    A torch `Dataset` is not an array: such a part is loaded by every process.
    """
    if folder is None:
        return _data_of(workload)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not index.exists():
            _write(_data_of(workload), folder, index)
    shared = json.loads(index.read_text())
    if not shared:
        return _data_of(workload)
    parts = {part: tuple(np.load(folder / name, mmap_mode="c") for name in names) for part, names in shared.items()}
    return Data(**parts)


def _data_of(workload: Workload) -> Data:
    try:
        data = workload.data()
    except OnefoldError:
        raise
    except Exception as error:
        raise WorkloadError(f"data() of {workload.name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(data, Data):
        raise WorkloadError(
            f"data() of {workload.name} must return onefold.Data(train=…), but got {type(data).__name__}"
        )
    return data


def _write(data: Data, folder: Path, index: Path) -> None:
    names: dict[str, list[str]] = {}
    if all(isinstance(getattr(data, part), (tuple, list, type(None))) for part in PARTS):
        for part in PARTS:
            arrays = getattr(data, part)
            if arrays is not None:
                names[part] = [f"{part}-{i}.npy" for i in range(len(arrays))]
                for name, array in zip(names[part], arrays):
                    _save(folder / name, array)
    whole = index.with_suffix(".new")
    whole.write_text(json.dumps(names))
    whole.replace(index)


def _save(path: Path, array: Any) -> None:
    plain = np.ascontiguousarray(array.numpy() if hasattr(array, "numpy") else array)
    if plain.dtype.hasobject:
        raise WorkloadError(f"the arrays of data() must hold numbers, but one holds {plain.dtype}")
    try:
        np.save(path, plain, allow_pickle=False)
    except OSError as error:
        space = os.statvfs(path.parent)
        free = space.f_bavail * space.f_frsize
        raise StoreError(
            f"the data set cannot be shared in {path.parent}: {error}; "
            f"{plain.nbytes / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free"
        ) from error
