"""The finished cases, one JSON line each, in a file that later runs continue."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from claims.json_lines import append_line, read_lines

Row = dict[str, Any]


class FinishedCases:
    """Rows by key; of several with one key the last counts. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.rows: dict[str, Row] = {row["key"]: row for row in read_lines(path)}

    def add(self, row: Row) -> None:
        """Append a row."""
        with self._lock:
            self.rows[row["key"]] = row
            append_line(self.path, row)
