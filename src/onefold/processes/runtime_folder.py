"""The folder in which the processes of a user on this machine find each other, whatever their homes are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

SHARED = Path("/tmp")  # $TMPDIR differs between processes


def runtime_folder() -> Path:
    """Return the user's folder for locks: in $XDG_RUNTIME_DIR, in /run/user/UID, or in /tmp.

    Raises OSError if none can be used. One that another user owns, or may write to, is not used.
    """
    user = os.getuid()
    candidates = [Path(f"/run/user/{user}/onefold"), SHARED / f"onefold-{user}"]
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.insert(0, Path(xdg) / "onefold")
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_own(folder):
                return folder
        except OSError:
            continue
    raise PermissionError(f"no folder for locks can be used: {', '.join(map(str, candidates))}")


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    is_private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and is_private
