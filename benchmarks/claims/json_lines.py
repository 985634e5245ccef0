"""Files of JSON lines that interrupted runs leave behind and later runs continue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects in a file, none if it does not exist; a line that was cut off by a kill does not count."""
    objects = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            objects.append(json.loads(line))
        except ValueError:
            continue
    return objects


def append_line(file: Path, content: dict[str, Any]) -> None:
    """Append an object as a line of its own, also if the last line was cut off."""
    with file.open("ab+") as lines:
        if lines.tell() > 0:
            lines.seek(-1, 2)
            if lines.read(1) != b"\n":
                lines.write(b"\n")
        lines.write(json.dumps(content, separators=(",", ":")).encode() + b"\n")
