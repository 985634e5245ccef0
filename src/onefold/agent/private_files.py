"""Files that only this user may read."""

from __future__ import annotations

import os
from pathlib import Path


def write_privately(file: Path, text: str) -> None:
    """Replace a file by one that only this user may read."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    new.replace(file)
