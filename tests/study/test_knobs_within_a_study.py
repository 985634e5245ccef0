"""Knobs that one trial has settled on serve the other trials of the same shape."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold import Budget, Choice, Config, Float, Space, Study
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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no threads to choose")
def test_the_last_trials_of_a_function_have_cores_to_choose_from(tmp_path: Path) -> None:
    def function(config: Config) -> Iterator[float]:
        for step in range(1, 25):
            yield config.x / step

    def threads_of(mode: str) -> dict[int, int]:
        budget = Budget(trials=len(os.sched_getaffinity(0)), max_epochs=24, min_epochs=12)
        study = Study(function, Space(x=Float(0, 1)), budget=budget, knobs=mode, name=mode, home=tmp_path)
        study.run()
        return {rung.rung: rung.threads for trial in study.trials for rung in trial.rungs}

    assert threads_of("off") == {0: 1, 1: 1}
    threads = threads_of("probe")
    assert threads[0] == 1
    assert threads[1] > 1
