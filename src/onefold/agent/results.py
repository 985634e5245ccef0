"""The results of finished requests, kept by the id of the request, so that nothing is measured twice."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

MAX_RESULTS = 20_000  # of a few hundred bytes each
SPARE = 1_000  # results that are removed at once when there are too many


class ResultStore:
    """Results in files of a folder; the oldest are removed when there are more than `most`."""

    def __init__(self, folder: Path, most: int = MAX_RESULTS) -> None:
        self._folder, self._most = folder / "results", most
        self._lock = threading.Lock()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._count = sum(1 for _ in self._folder.iterdir())

    def find(self, request: str) -> Any:
        """Return the result of a request, or None."""
        try:
            return json.loads(self._path(request).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def save(self, request: str, result: Any) -> None:
        """Keep a result. Raises OSError if the disk is full."""
        with self._lock:
            if self._count >= self._most:
                self._remove_oldest()
            path = self._path(request)
            new = path.with_suffix(".new")
            try:
                new.write_text(json.dumps(result), encoding="utf-8")
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
            self._count += 1

    def _path(self, request: str) -> Path:
        return self._folder / f"{request}.json"

    def _remove_oldest(self) -> None:
        entries = sorted(os.scandir(self._folder), key=lambda entry: entry.stat().st_mtime)
        removed = entries[: min(SPARE, len(entries))]
        for entry in removed:
            Path(entry.path).unlink(missing_ok=True)
        self._count = len(entries) - len(removed)
