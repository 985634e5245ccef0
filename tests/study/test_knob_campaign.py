"""Jobs are profiled before they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold import Budget, Choice, Space
from onefold.study import Study, knob_campaign
from onefold.study.knob_campaign import profile_knobs
from onefold.testing.toy import Spirals
from onefold.training import knob_planner
from onefold.training.api import remembered_knobs
from small_studies import small_study


def test_a_job_is_trained_until_its_knobs_are_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knob_planner, "MAX_STEPS", {"time": 3, "energy": 3})
    trained: list[int] = []

    def single_trial(_: str, config: Any, *, epochs: int, knobs: Any, **__: Any) -> Study:
        trained.append(epochs)
        return small_study(
            Spirals(),
            tmp_path,
            name=f"job-{len(trained)}",
            space=Space(**{name: Choice(value) for name, value in config.items()}),
            search="grid",
            rungs="none",
            budget=Budget(trials=1, max_epochs=epochs),
            knobs=knobs,
        )

    monkeypatch.setattr(knob_campaign, "single_trial", single_trial)
    monkeypatch.setattr(Spirals, "space", Space(width=8, layers=1, batch_size=32, optimizer="adam", lr=0.01))
    (job,) = profile_knobs(["onefold.testing.toy:Spirals"], batch_sizes=[32], repeats=1, epochs=1, home=tmp_path)
    assert trained == [2**attempt for attempt in range(len(trained))]
    assert len(trained) > 1
    assert job.records
    assert len(remembered_knobs(tmp_path)) == 1
