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
    result = compare_graph_levels(compiler, tmp_path, PhaseCosts())
    assert [candidate.number for candidate in result] == [0, 1, 3]
    assert all(candidate.latency_s > 0 and candidate.compile_s > 0 for candidate in result)
    assert result[0].operators > result[1].operators
    assert result[2].operators == len(compiler.operators)
    assert compiler.best is best


def test_levels_that_fail_are_left_out(
    compiler: ModelCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.kernels.graph_levels.GRAPH_LEVELS", range(1))
    assert compare_graph_levels(compiler, tmp_path / "none", PhaseCosts()) == ()
