"""Clean up after killed processes, whose temporary folders are named after their identities."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from onefold.processes.identity import parse_identity, this_process
from onefold.processes.marked import kill_if_marked, marked_processes

PREFIX = "onefold-"


def owned_folder(*, create: bool = False) -> Path:
    """Return the folder of all temporary files of this process."""
    folder = Path(tempfile.gettempdir()) / f"{PREFIX}{this_process()}"
    if create:
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def remove_leftovers() -> None:
    """Kill the workers' children and delete the temporary folders that owners left behind which ended without a guard.

    What belongs to another user, another machine or another container is not touched.
    """
    for pid, mark in list(marked_processes()):
        owner = parse_identity(mark.partition("/")[0])
        if owner is not None and owner.is_dead:
            kill_if_marked(pid, mark)
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            owner = parse_identity(folder.name.removeprefix(PREFIX))
            if owner is not None and owner.is_dead and _is_own(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    with suppress(OSError):
        return not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    return False
