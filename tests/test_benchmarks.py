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


class TestEmulation:
    """How the emulator is compared with recordings of another machine."""

    def test_the_machine_of_a_recording_has_the_fastest_of_its_probes_figures(self) -> None:
        carry_over = importlib.import_module("emulations.carry_over")
        machine = carry_over.probed("xeon-16")
        assert machine.gflops == pytest.approx(165.57, abs=0.01)
        assert machine.bandwidth_gbps == pytest.approx(159.47, abs=0.01)
        assert dict(machine.thread_speed)[2] == pytest.approx(1.698, abs=0.001)
        assert len(carry_over.recorded("xeon-16")) == 24 * 2 * 3 * 4

    def test_errors_are_summarized_with_their_sign_and_size(self) -> None:
        carry_over = importlib.import_module("emulations.carry_over")
        found = carry_over.errors(lambda _: 1.1, {("a", 1, 1): 1.0, ("b", 1, 1): 2.2, ("c", 1, 1): 1.0})
        result = carry_over.summary(found)
        assert (result["points"], result["within 20%"]) == (3, pytest.approx(2 / 3))
        assert (result["median"], result["bias"]) == (pytest.approx(0.1), pytest.approx(0.1))

    def test_a_machine_that_repeats_itself_has_no_error(self) -> None:
        carry_over = importlib.import_module("emulations.carry_over")
        assert carry_over.repeatability({("a", 1, 1): [2.0, 2.0, 2.0]}) == [0.0, 0.0, 0.0]
        assert max(carry_over.repeatability({("a", 1, 1): [1.0, 2.0, 2.0]})) == 1.0

    def test_int8_is_corrected_by_other_families_alone(self) -> None:
        carry_over = importlib.import_module("emulations.carry_over")
        points = {("cnn-int8", 1, 1): 9.0, ("mlp-int8", 1, 1): 2.0, ("mlp", 1, 1): 5.0}
        corrected = carry_over.with_int8_of_others(lambda _: 1.0, points)
        assert [corrected(key) for key in points] == [2.0, 9.0, 1.0]
