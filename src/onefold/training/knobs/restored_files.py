"""Files of the kernel that are changed for a block and restored even if the process is killed in it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onefold.processes.core_leases import try_lock

# Waits for the end of its input, which the kernel closes when this process ends, and writes the contents back.
RESTORE = 'trap "" HUP INT TERM; read -r _; while [ $# -gt 1 ]; do printf %s "$2" > "$1"; shift 2; done'

_claims: dict[tuple[int, int, int], int] = {}  # descriptors by process, device and inode


@contextmanager
def restored_files(files: Sequence[Path]) -> Iterator[None]:
    """Restore the contents of files after the block, also after `kill -9`."""
    contents = [text for file in files for text in (str(file), file.read_text())]
    # Without the environment of a worker, whose processes are killed together with it.
    guard = subprocess.Popen(
        ["/bin/sh", "-c", RESTORE, "restore", *contents], stdin=subprocess.PIPE, start_new_session=True, env={}
    )
    try:
        yield
    finally:
        guard.communicate()


def claim(folder: Path) -> bool:
    """Return whether the files of a folder are this process's to change, until it ends.

    They are those of the process that claims them first: two that change and restore the same file in turn would
    restore each other's values.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    status = os.fstat(descriptor)
    key = os.getpid(), status.st_dev, status.st_ino  # the cores of a frequency domain share one folder
    if key not in _claims and try_lock(descriptor, fcntl.LOCK_EX):
        _claims[key] = descriptor
    else:
        os.close(descriptor)
    return key in _claims
