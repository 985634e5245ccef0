"""Remembered knobs are listed, exported and imported."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import pytest

from onefold.store.home import Home
from onefold.training.api import export_knobs, import_knobs, remembered_knobs
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import JobProfile, KnobMemory
from onefold.vocabulary.records import Config, to_json

PROFILE = JobProfile({"convolution_share": 0.5, "log_flops": 4.25}, ("operators", "process"))
MEMORY = KnobMemory("a machine", "time", False, PROFILE, Config(threads=1), 0.01, 0.005)


def test_exported_knobs_are_imported_unchanged(tmp_path: Path) -> None:
    with closing(Home(tmp_path / "one").store()) as store:
        store.save_knob_memory(MEMORY)
    assert export_knobs(tmp_path / "known.json", tmp_path / "one") == 1
    assert import_knobs(tmp_path / "known.json", tmp_path / "other") == 1
    assert remembered_knobs(tmp_path / "other") == [MEMORY]


@pytest.mark.parametrize("content", ["[1, 2]", "{}", "no JSON", '{"kind": "onefold knobs", "version": 9}'])
def test_a_file_that_is_not_an_export_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(InputError, match="is not an export of knobs"):
        import_knobs(tmp_path / "file.json", tmp_path)


def test_a_path_that_cannot_be_read_or_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        import_knobs(tmp_path / "nowhere.json", tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        export_knobs(tmp_path / "nowhere" / "known.json", tmp_path)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1e300, "4.25"])
@pytest.mark.parametrize("field", ["profile", "found"])
def test_jobs_with_impossible_numbers_are_refused(tmp_path: Path, field: str, number: object) -> None:
    memory = to_json(MEMORY)
    memory[field] = {**memory[field], "features": {"log_flops": number}} if field == "profile" else number
    file = tmp_path / "known.json"
    file.write_text(json.dumps({"kind": "onefold knobs", "version": 1, "remembered": [to_json(MEMORY), memory]}))
    with pytest.raises(InputError, match="is not an export of knobs"):
        import_knobs(file, tmp_path / "home")
    assert remembered_knobs(tmp_path / "home") == [], "all or nothing is imported"
