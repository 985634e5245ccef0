"""The finished cases, one JSON line each, in a file that later runs continue."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Journal:
    """Rows by key; a line that was cut off does not count, and of several with one key the last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.rows: dict[str, Row] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            self.rows[row["key"]] = row

    def add(self, row: Row) -> None:
        """Append a row."""
        with self._lock:
            self.rows[row["key"]] = row
            with self.path.open("a") as file:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
