"""The comparison of graph optimization levels."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.kernels.graph_levels import compare_graph_levels
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.phase_costs import PhaseCosts


def test_each_level_is_compiled_and_timed(
    compiler: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.kernels.graph_levels.GRAPH_LEVELS", (0, 1, 3))
    best = compiler.best
    found = compare_graph_levels(compiler, tmp_path, PhaseCosts())
    assert [one.number for one in found] == [0, 1, 3]
    assert all(one.latency_s > 0 and one.compile_s > 0 for one in found)
    assert found[0].operators > found[1].operators
    assert found[2].operators == len(compiler.operators)
    assert compiler.best is best


def test_levels_that_fail_are_left_out(
    compiler: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.kernels.graph_levels.GRAPH_LEVELS", range(1))
    assert compare_graph_levels(compiler, tmp_path / "none", PhaseCosts()) == ()
