"""The finished sections of a benchmark, so that an interrupted run continues with the next one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from onefold.vocabulary.records import from_json, to_json

Result = TypeVar("Result")


class Journal:
    """The results of sections by name, one JSON line each, in a folder that the sections may use for their files.

    A line that was cut off by a kill does not count: its section runs again.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file = folder / "journal.jsonl"
        self._results: dict[str, Any] = {}
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                try:
                    section = json.loads(line)
                except ValueError:
                    continue
                self._results[section["section"]] = section["result"]

    def section(self, name: str, kind: type[Result], measure: Callable[[], Result]) -> Result:
        """Return the result of a section, a record or plain JSON values; run the section unless it is finished."""
        if name in self._results:
            print(f"{name}: finished in an earlier run", flush=True)
        else:
            print(name, flush=True)
            line = json.dumps({"section": name, "result": to_json(measure())})
            with self._file.open("a") as file:
                file.write(f"\n{line}\n")  # a line that was cut off ends here
            self._results[name] = json.loads(line)["result"]
        return from_json(kind, self._results[name])


@contextmanager
def open_journal(state: Path | None, *, quick: bool) -> Iterator[Journal]:
    """Open the journal in a folder, with separate ones for full and quick runs; without a folder it is temporary."""
    with tempfile.TemporaryDirectory() as temporary:
        yield Journal((state or Path(temporary)).resolve() / ("quick" if quick else "full"))
