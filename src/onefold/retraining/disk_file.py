"""Temporary files on a disk. Those of a file system in memory count against a memory limit."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

from onefold.meter.free_memory import PROC
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import size

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
FOLDERS = ("/var/tmp", "~")  # to choose from, after the folder for temporary files


def open_disk_file(size_bytes: int) -> BinaryIO:
    """Open an unnamed temporary file with that much space reserved; it is deleted when it is closed or we are killed.

    Raises:
        InputError: No disk has the space.
    """
    folders = [Path(tempfile.gettempdir()), *(Path(folder).expanduser() for folder in FOLDERS)]
    on_disk = [folder for folder in folders if file_system(folder) not in MEMORY_FILE_SYSTEMS]
    for folder in on_disk or folders:
        try:
            file = cast(BinaryIO, tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - the caller closes it
        except OSError:
            continue
        try:
            if size_bytes and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            return file
        except OSError:
            file.close()
    raise InputError(
        f"retraining needs {size(size_bytes)} on a disk for a copy of the weights, but neither "
        f"{' nor '.join(map(str, on_disk or folders))} has that; free some space, or set TMPDIR to a folder that has it"
    )


def file_system(folder: Path, proc: Path = PROC) -> str:
    """Return the type of the file system that a folder is on; empty if the system does not report it."""
    try:
        lines = (proc / "self" / "mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    mounts = [(Path(mount), kind) for _, mount, kind, *_ in map(str.split, lines)]
    known = [(mount, kind) for mount, kind in mounts if folder.resolve().is_relative_to(mount)]
    return max(known, key=lambda mount: len(mount[0].parts), default=(folder, ""))[1]
