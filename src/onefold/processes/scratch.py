"""Temporary folders that are deleted even if their owner is killed.

TMPDIR/onefold-IDENTITY/w0/         temporary files of a worker, the first of this process
TMPDIR/onefold-IDENTITY/x5k2…/      a folder of `scratch_folder`
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onefold.processes.guard import start_guard
from onefold.processes.leftovers import owned_folder

MAX_CHARACTERS = 70  # of a worker's folder: sockets in it must have paths of less than 108
_numbers = itertools.count()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new temporary folder that is deleted after the block or, if this process is killed, soon after."""
    start_guard()
    with tempfile.TemporaryDirectory(dir=owned_folder(create=True), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def worker_folder() -> Path | None:
    """Return a new folder for the temporary files of a worker; None if its path is too long for sockets."""
    folder = owned_folder() / f"w{next(_numbers)}"
    if len(str(folder)) > MAX_CHARACTERS:
        return None
    try:
        owned_folder(create=True)
        folder.mkdir()
    except OSError:
        return None
    return folder
