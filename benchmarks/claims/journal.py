"""The finished sections of a benchmark, so that an interrupted run continues with the next one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from claims.json_lines import append_line, read_lines
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
        self._results: dict[str, Any] = {line["section"]: line["result"] for line in read_lines(self._file)}

    def section(self, name: str, kind: type[Result], measure: Callable[[], Result]) -> Result:
        """Return the result of a section, a record or plain JSON values; run the section unless it is finished."""
        if name in self._results:
            print(f"{name}: finished in an earlier run", flush=True)
        else:
            print(name, flush=True)
            line = {"section": name, "result": to_json(measure())}
            append_line(self._file, line)
            self._results[name] = json.loads(json.dumps(line["result"]))
        return from_json(kind, self._results[name])


@contextmanager
def open_journal(state: Path | None, *, quick: bool) -> Iterator[Journal]:
    """Open the journal in a folder, with separate ones for full and quick runs; without a folder it is temporary."""
    with tempfile.TemporaryDirectory() as temporary:
        yield Journal((state or Path(temporary)).resolve() / ("quick" if quick else "full"))
