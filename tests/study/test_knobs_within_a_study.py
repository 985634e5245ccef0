"""Knobs that one trial has settled on serve the other trials of the same shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold import Budget, Choice, Space
from onefold.testing.toy import Spirals
from onefold.training import knob_planner
from onefold.vocabulary.knobs import Phase
from small_studies import small_study

CONTENTION_KNOBS = ("threads", "cores")


def test_later_trials_of_a_shape_probe_nothing_but_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knob_planner, "MAX_STEPS", {"time": 3, "energy": 3})
    shape = {"width": Choice(8), "layers": Choice(1), "batch_size": Choice(32), "optimizer": Choice("adam")}
    study = small_study(
        Spirals(),
        tmp_path,
        space=Space(**shape, lr=Choice(0.001, 0.003, 0.01)),
        search="grid",
        rungs="none",
        budget=Budget(trials=3, max_epochs=16),
        knobs="on",
    )
    study.run()
    for trial in (1, 2):
        records = [record for record in study.knob_records if record.trial == trial]
        windows = [window for record in records for window in record.windows]
        recalled = next(window.knobs for window in windows if window.phase is Phase.RECALLED)
        first_probed = next((window.knobs for window in windows if window.phase is Phase.PROBED), recalled)
        assert {name for name in recalled if first_probed[name] != recalled[name]} <= set(CONTENTION_KNOBS)
