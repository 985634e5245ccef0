"""Record measurements and replay them, so that a real meter of one machine is a fixture on every other.

A recording is a file of JSON lines. The first is the source of energy, `{"source": "rapl"}`; each other one is a
window, numbered in the order of opening and written when it closed: `{"window": 0, "measurement": {…}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from onefold.meter.meter import Meter, Window
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Measurement, from_json, to_json


class RecordingMeter:
    """Write every closed window of another meter to the file at `path`, which is overwritten."""

    def __init__(self, meter: Meter, path: Path) -> None:
        self._meter, self._path = meter, path
        self._numbers = count()
        self._path.write_text(_line({"source": meter.source}))

    @property
    def source(self) -> str:
        return self._meter.source

    @contextmanager
    def window(self) -> Iterator[Window]:
        number = next(self._numbers)
        window: Window | None = None
        try:
            with self._meter.window() as window:
                yield window
        finally:
            if window is not None:
                self._write(number, window.measurement)

    def _write(self, number: int, measurement: Measurement) -> None:
        with self._path.open("a") as file:
            file.write(_line({"window": number, "measurement": to_json(measurement)}))


class ReplayMeter:
    """Return the windows of the recording at `path`, in the order they are opened.

    A recording has only complete windows: the cost of an open one is zero. Raises InputError if the file is not a
    recording, or if more windows are opened than it has.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        first, *rest = _documents(path)
        try:
            self._source: str = first["source"]
            numbered = {line["window"]: from_json(Measurement, line["measurement"]) for line in rest}
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a recording of a meter: {error!r}; record it again") from error
        self._measurements = [numbered[number] for number in sorted(numbered)]
        self._opened = 0

    @property
    def source(self) -> str:
        return self._source

    @contextmanager
    def window(self) -> Iterator[Window]:
        if self._opened == len(self._measurements):
            raise InputError(f"{self._path} has only {self._opened} windows; record it again")
        window = ReplayedWindow(self._measurements[self._opened])
        self._opened += 1
        try:
            yield window
        finally:
            window.close()


class ReplayedWindow:
    """A window with a recorded cost."""

    def __init__(self, recorded: Measurement) -> None:
        self._recorded, self._closed = recorded, False

    @property
    def measurement(self) -> Measurement:
        """Return the recorded cost once this window is closed; nothing before."""
        return self._recorded if self._closed else Measurement.nothing()

    def close(self) -> None:
        """Complete the measurement."""
        self._closed = True


def _line(document: Any) -> str:
    return json.dumps(document, separators=(",", ":")) + "\n"


def _documents(path: Path) -> list[Any]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InputError(f"the recording {path} cannot be read: {error.strerror}") from error
    try:
        return [json.loads(line) for line in lines] or [{}]
    except ValueError as error:
        raise InputError(f"{path} is not a recording of a meter: {error}; record it again") from error
