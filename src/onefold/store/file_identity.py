"""Detect that an open file was deleted, renamed or replaced."""

from __future__ import annotations

import os
from pathlib import Path


class FileIdentity:
    """The device and the inode of a file, to be compared with what its path leads to now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identity(path)

    def is_of(self, descriptor: int) -> bool:
        """Return whether this is the identity of an open file."""
        status = os.fstat(descriptor)
        return self._identity == (status.st_dev, status.st_ino)

    @property
    def change(self) -> str:
        """Say what happened to the file since, as a predicate; empty if nothing."""
        now = _identity(self.path)
        if now == self._identity:
            return ""
        return "was deleted or renamed" if now is None else "was replaced by another file"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - called at every transaction
    except OSError:
        return None
    return status.st_dev, status.st_ino
