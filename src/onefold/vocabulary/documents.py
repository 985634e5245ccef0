"""Read small JSON and TOML files that others may have written: within a limit, and without waiting for a pipe."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

MAX_BYTES = 16_000_000


def open_regular(path: str | Path) -> int:
    """Open a file for reading and return its descriptor.

    Raises OSError if it cannot be opened, and ValueError for a folder, a device or a pipe, which might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    return descriptor


def read_document(path: str | Path, most_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file.

    Raises OSError if it cannot be opened, and ValueError if it is not a regular file, larger than `most_bytes`, or
    not in UTF-8.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError("it is too large")
    return content.decode("utf-8")


def read_json(path: str | Path, most_bytes: int = MAX_BYTES) -> Any:
    """Return the content of a JSON file. Raises what `read_document` does, and ValueError if it is not JSON."""
    return parse_json(read_document(path, most_bytes))


def parse_json(text: str) -> Any:
    """Return the content of a JSON text. Raises ValueError if it is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ValueError if it is none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
