"""What the benchmarks share."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from onefold.vocabulary.records import Energy

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
JOURNAL = importlib.import_module("claims.journal").Journal


def never() -> Any:
    pytest.fail("a finished section was run again")


def test_a_finished_section_is_not_run_again(tmp_path: Path) -> None:
    energies = (Energy(1.5, "modelled"), Energy(None, "unavailable"))
    JOURNAL(tmp_path).section("energies", tuple[Energy, ...], lambda: energies)
    assert JOURNAL(tmp_path).section("energies", tuple[Energy, ...], never) == energies


def test_a_section_that_a_kill_cut_off_is_run_again(tmp_path: Path) -> None:
    journal = JOURNAL(tmp_path)
    journal.section("first", dict, lambda: {"s": 1.0})
    journal.section("second", dict, lambda: {"s": 2.0})
    file = tmp_path / "journal.jsonl"
    file.write_text(file.read_text()[:-8])
    assert JOURNAL(tmp_path).section("second", dict, lambda: {"s": 3.0}) == {"s": 3.0}
    resumed = JOURNAL(tmp_path)
    assert [resumed.section(name, dict, never)["s"] for name in ("first", "second")] == [1.0, 3.0]


def test_a_section_that_raises_is_not_finished(tmp_path: Path) -> None:
    journal = JOURNAL(tmp_path)
    with pytest.raises(ZeroDivisionError):
        journal.section("ratio", float, lambda: 1 / 0)
    assert journal.section("ratio", float, lambda: 0.5) == 0.5
