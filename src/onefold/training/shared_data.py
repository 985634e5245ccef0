"""Datasets shared between worker processes: one process writes plain arrays, all of them map these into memory."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import OnefoldError, StoreError, WorkloadError
from onefold.vocabulary.workload import Data, Workload

PARTS = ("train", "validation", "test")


def open_data(workload: Workload, folder: Path | None) -> Data:
    """Return the data of a workload; its arrays are mapped from `folder`, where the first process writes them.

    A torch `Dataset` is not an array, so every process loads its own.
    """
    if folder is None:
        return _load_data(workload)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not index.exists():
            _write(_load_data(workload), folder, index)
    names = json.loads(index.read_text())
    if not names:
        return _load_data(workload)
    return Data(**{part: tuple(np.load(folder / name, mmap_mode="c") for name in names[part]) for part in names})


def _load_data(workload: Workload) -> Data:
    try:
        data = workload.data()
    except OnefoldError:
        raise
    except Exception as error:
        raise WorkloadError(f"data() of {workload.name} failed: {type(error).__name__}: {headline(error)}") from error
    if not isinstance(data, Data):
        raise WorkloadError(
            f"data() of {workload.name} must return onefold.Data(train=…), but returned {type(data).__name__}"
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
    complete = index.with_suffix(".new")
    complete.write_text(json.dumps(names))
    complete.replace(index)


def _save(path: Path, array: Any) -> None:
    plain = np.ascontiguousarray(array.numpy() if hasattr(array, "numpy") else array)
    if plain.dtype.hasobject:
        raise WorkloadError(f"the arrays of data() must be numeric, but one has dtype {plain.dtype}")
    try:
        np.save(path, plain, allow_pickle=False)
    except OSError as error:
        file_system = os.statvfs(path.parent)
        free = file_system.f_bavail * file_system.f_frsize
        raise StoreError(
            f"the dataset cannot be written to {path.parent}: {error}; "
            f"it needs {plain.nbytes / 1e6:.0f} MB and {free / 1e6:.0f} MB are free"
        ) from error
