"""A study lends the cores of idle workers to the trials that run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from onefold import Choice, Config, Space
from onefold.processes import lent_cores
from onefold.testing.toy import Spirals
from onefold.vocabulary.budget import Budget
from small_studies import small_study

DEADLINE_S = 60.0


class Patient(Spirals):
    """Its wide trial waits until a core is lent to it, and reports how many are."""

    def train_epoch(
        self, model: torch.nn.Module, batches: Iterable[Any], optimizer: torch.optim.Optimizer, config: Config
    ) -> Any:
        metrics = dict(super().train_epoch(model, batches, optimizer, config))
        deadline = time.monotonic() + (DEADLINE_S if config.width == 8 else 0.0)
        while not lent_cores() and time.monotonic() < deadline:
            time.sleep(0.01)
        return {**metrics, "lent": float(len(lent_cores()))}


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core leaves none to lend")
def test_the_core_of_an_idle_worker_is_lent(tmp_path: Path) -> None:
    study = small_study(
        Patient(),
        tmp_path,
        space=Space(
            width=Choice(4, 8), layers=Choice(1), batch_size=Choice(32), optimizer=Choice("adam"), lr=Choice(0.01)
        ),
        search="grid",
        rungs="none",
        budget=Budget(trials=2, max_epochs=1),
        knobs="on",
        parallel=2,
    )
    study.run()
    assert {trial.config.width: trial.metrics["lent"] for trial in study.trials}[8] == 1.0


def test_studies_without_knob_tuning_lend_nothing(tmp_path: Path) -> None:
    assert small_study(Patient(), tmp_path, knobs="on").spec.lends_cores
    for mode in ("off", "recall"):
        assert not small_study(Patient(), tmp_path, knobs=mode).spec.lends_cores
