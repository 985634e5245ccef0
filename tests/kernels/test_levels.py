"""Levels of graph optimisation side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.kernels.compiled_model import WholeModel
from onefold.kernels.graph import LEVELS
from onefold.kernels.ledger import Ledger
from onefold.kernels.levels import compare_levels


def test_each_level_is_compiled_and_timed(whole: WholeModel, tmp_path: Path) -> None:
    best = whole.best
    found = compare_levels(whole, tmp_path, Ledger())
    assert [one.number for one in found] == list(LEVELS)
    assert all(one.latency_s > 0 and one.compile_s > 0 for one in found)
    assert found[0].operators > found[1].operators >= found[2].operators
    assert found[3].operators == len(whole.operators)
    assert whole.best is best


def test_levels_that_a_model_does_not_survive_are_left_out(
    whole: WholeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold.kernels.levels.LEVELS", range(1))
    assert compare_levels(whole, tmp_path / "none", Ledger()) == ()
