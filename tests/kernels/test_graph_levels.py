"""Levels of graph optimisation side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.kernels.graph import LEVELS
from onefold.kernels.graph_levels import compare_levels
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.phase_costs import PhaseCosts


def test_each_level_is_compiled_and_timed(whole: ModelCompiler, tmp_path: Path) -> None:
    best = whole.best
    found = compare_levels(whole, tmp_path, PhaseCosts())
    assert [one.number for one in found] == list(LEVELS)
    assert all(one.latency_s > 0 and one.compile_s > 0 for one in found)
    assert found[0].operators > found[1].operators >= found[2].operators
    assert found[3].operators == len(whole.operators)
    assert whole.best is best


def test_levels_that_a_model_does_not_survive_are_left_out(
    whole: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.kernels.graph_levels.LEVELS", range(1))
    assert compare_levels(whole, tmp_path / "none", PhaseCosts()) == ()
