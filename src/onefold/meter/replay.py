"""Measurements written down and played back: what a real meter wrote on some machine is a fixture on every other.

A recording is a file of JSON lines. The first says where the joules came from, `{"source": "rapl"}`; each other one is
a window, numbered in the order of opening and written when it closed: `{"window": 0, "measurement": {…}}`.
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
    """Another meter, with every window that closes written to the file at `path`, which is begun anew."""

    def __init__(self, meter: Meter, path: Path) -> None:
        self._meter, self._path = meter, path
        self._numbers = count()
        self._path.write_text(_line({"source": meter.source}))

    @property
    def source(self) -> str:
        """That of the other meter."""
        return self._meter.source

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Opens a window of the other meter."""
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
    """The windows of the recording at `path`, one after the other as they are opened.

    A recording holds complete windows only: while one is open, nothing was spent so far. InputError when the file is
    not a recording, or when one window more is opened than it holds.
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
        """That of the meter which was recorded."""
        return self._source

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Opens the next window of the recording."""
        if self._opened == len(self._measurements):
            raise InputError(f"{self._path} holds {self._opened} windows and one more was opened; record it again")
        window = ReplayedWindow(self._measurements[self._opened])
        self._opened += 1
        try:
            yield window
        finally:
            window.close()


class ReplayedWindow:
    """A window of which the cost is known beforehand."""

    def __init__(self, recorded: Measurement) -> None:
        self._recorded, self._closed = recorded, False

    @property
    def measurement(self) -> Measurement:
        """What the recorded window cost once this one is closed; before that, nothing."""
        return self._recorded if self._closed else Measurement.nothing()

    def close(self) -> None:
        """Completes the measurement."""
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
