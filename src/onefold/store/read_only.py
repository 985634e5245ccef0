"""Read an SQLite store where nothing can be written, not even the files that its write-ahead log needs."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

INDEX_BYTES = 32768  # the least size of a log's index in shared memory


def is_writable(path: Path) -> bool:
    """Return whether this process may write a store and its log."""
    return all(os.access(item, os.W_OK, effective_ids=True) for item in (path, path.parent))


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that reads the store.

    A log that a writer keeps open is read with it; one that a killed writer left is applied to a copy in memory.
    """
    log, index = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    if _size(log) == 0:
        return _open(path, "immutable=1")  # without a log there is no writer, and none can start
    if _size(index) >= INDEX_BYTES:  # a smaller one was left by a writer on a full disk
        return _open(path, "mode=ro")
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for file in (path, log):
            shutil.copyfile(file, Path(folder) / file.name)
        with closing(sqlite3.connect(copy)) as source:
            source.backup(memory)
    return memory


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _open(path: Path, option: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{option}", uri=True, isolation_level=None)
