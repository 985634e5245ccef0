"""Two small digits networks, trained once for all tests of compression."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from onefold import Config
from onefold.model_folder import CARD
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import load_weights
from onefold.training.trial_files import rung_weights_file
from onefold.training.weights import write_weights
from onefold.training.workload_trainer import WorkloadTrainer
from onefold.vocabulary.records import Grant
from onefold.vocabulary.workload_reference import load


@dataclass(frozen=True)
class TrainedTrial:
    """A trial as a study leaves it behind."""

    config: Config
    weights: Path


@pytest.fixture(scope="session")
def trained_trials(tmp_path_factory: pytest.TempPathFactory) -> list[TrainedTrial]:
    """Two trials of different sizes."""
    workload, folder = load("digits"), tmp_path_factory.mktemp("study")
    trainer, trials = WorkloadTrainer(workload, folder), []
    for number, (filters, epochs) in enumerate(((4, 1), (8, 4))):
        config = workload.space.complete({"filters": filters, "depth": 1})
        work = Assignment(
            number, 0, config, Grant(1, epochs, 1.0), seed=1, threads=1, max_epochs=epochs,
            objective=workload.objective,
        )  # fmt: skip
        assert len(list(trainer.train([work], tick=lambda: None))) == epochs
        trials.append(TrainedTrial(config, rung_weights_file(folder, number, 0)))
    return trials


@pytest.fixture(scope="session")
def model_folder(trained_trials: list[TrainedTrial], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the larger one, as `Result.save` writes it."""
    folder = tmp_path_factory.mktemp("model")
    trial = trained_trials[1]
    write_weights(folder, load_weights(trial.weights))
    card = {"study": "digits-1", "workload": "digits", "trial": 1, "config": dict(trial.config)}
    (folder / CARD).write_text(json.dumps(card))
    return folder
