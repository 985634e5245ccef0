"""The contract of every trainer. Subclass it and define the fixture `open_trainer`:

class TestMyTrainer(TrainerContract):
    @pytest.fixture
    def open_trainer(self):
        return lambda folder: MyTrainer(..., folder)
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest

from onefold.training.assignment import Assignment
from onefold.training.trainer import Trainer
from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config, Epoch, Grant

COSTS = ("train_time_s", "energy_j", "memory_bytes")  # metrics that are measured and therefore vary


class TrainerContract:
    """What a study relies on. Trainers without a network raise WorkloadError where one is needed."""

    config = Config()
    objective = Objective(minimize="loss")

    @pytest.fixture
    def open_trainer(self) -> Callable[[Path], Trainer]:
        """Return a function that opens the trainer of a study in a folder."""
        raise NotImplementedError("define the fixture open_trainer")

    @pytest.fixture
    def trainer(self, open_trainer: Callable[[Path], Trainer], tmp_path: Path) -> Trainer:
        """Return a trainer of an empty study."""
        return open_trainer(tmp_path)

    def assignment(self, epochs: int = 3, trial: int = 0, rung: int = 0) -> Assignment:
        """Return an assignment that is granted some epochs on all data."""
        grant = Grant(level=rung + 1, epochs=epochs, data=1.0)
        return Assignment(trial, rung, self.config, grant, seed=1, threads=1, max_epochs=9, objective=self.objective)

    def test_yields_the_granted_epochs_in_order(self, trainer: Trainer) -> None:
        epochs = trained(trainer, self.assignment(3))
        assert [(epoch.trial, epoch.rung, epoch.number) for epoch in epochs] == [(0, 0, 1), (0, 0, 2), (0, 0, 3)]

    def test_reports_finite_metrics_and_measured_costs(self, trainer: Trainer) -> None:
        for epoch in trained(trainer, self.assignment(2)):
            assert "loss" in epoch.metrics
            assert all(isinstance(value, float) and isfinite(value) for value in epoch.metrics.values())
            assert epoch.measurement.time_s > 0
            assert epoch.measurement.energy.source

    def test_trains_every_member_of_a_group(self, trainer: Trainer) -> None:
        group = [self.assignment(2, trial) for trial in (3, 4)]
        epochs = trained(trainer, *group)
        for trial in (3, 4):
            assert [epoch.number for epoch in epochs if epoch.trial == trial] == [1, 2]

    def test_a_group_learns_the_same_as_its_members_alone(
        self, open_trainer: Callable[[Path], Trainer], tmp_path: Path
    ) -> None:
        group = [self.assignment(2, trial) for trial in (0, 1)]
        together = learned(trained(open_trainer(tmp_path / "together"), *group))
        alone = [learned(trained(open_trainer(tmp_path / "alone"), member)) for member in group]
        assert sorted(together, key=_order) == sorted((epoch for member in alone for epoch in member), key=_order)

    def test_an_interrupted_assignment_continues_with_the_same_result(
        self, open_trainer: Callable[[Path], Trainer], tmp_path: Path
    ) -> None:
        uninterrupted = trained(open_trainer(tmp_path / "first"), self.assignment(4))
        training = open_trainer(tmp_path / "second").train([self.assignment(4)], tick=lambda: None)
        next(training)
        training.close()
        resumed = trained(open_trainer(tmp_path / "second"), self.assignment(4))
        assert learned(resumed) == learned(uninterrupted)

    def test_stops_after_the_granted_time(self, trainer: Trainer) -> None:
        assignment = self.assignment()
        granted = replace(assignment, grant=replace(assignment.grant, epochs=1_000_000, time_s=0.01))
        epochs = trained(trainer, granted)
        assert 1 <= len(epochs) < 1_000_000

    def test_ticks_while_it_trains(self, trainer: Trainer) -> None:
        ticks: list[None] = []
        list(trainer.train([self.assignment(2)], tick=lambda: ticks.append(None)))
        assert len(ticks) >= 2

    def test_an_assignment_travels_without_local_paths(self, tmp_path: Path) -> None:
        packed = pickle.dumps(self.assignment())
        assert pickle.loads(packed) == self.assignment()
        assert str(tmp_path).encode() not in packed

    def test_scores_a_trained_trial(self, trainer: Trainer) -> None:
        assert trainer.score(self.assignment(), tick=lambda: None) == {}, "nothing is trained yet"
        trained(trainer, self.assignment(1))
        score = trainer.score(self.assignment(1), tick=lambda: None)
        assert all(isfinite(value) for value in score.values())

    def test_counts_its_training_samples(self, trainer: Trainer) -> None:
        assert trainer.training_samples is None or trainer.training_samples > 0
        assert (trainer.test_samples is None) == (trainer.training_samples is None)

    def test_measures_the_throughput_or_refuses(self, trainer: Trainer) -> None:
        if trainer.training_samples is None:
            with pytest.raises(WorkloadError):
                trainer.throughput(self.config, 1, 0.01, tick=lambda: None)
        else:
            assert trainer.throughput(self.config, 1, 0.01, tick=lambda: None) > 0

    def test_exports_a_network_or_refuses(self, trainer: Trainer, tmp_path: Path) -> None:
        if trainer.training_samples is None:
            with pytest.raises(WorkloadError):
                trainer.export(self.config, "models/0.onnx")
        else:
            path = trainer.export(self.config, "models/0.onnx")
            assert path == tmp_path / "models" / "0.onnx"
            assert path.stat().st_size > 0

    def test_opens_a_model_or_refuses(self, trainer: Trainer) -> None:
        if trainer.training_samples is None:
            with pytest.raises(WorkloadError):
                trainer.open_model(self.config)
        else:
            model = trainer.open_model(self.config)
            assert isfinite(model.score(model.network)["loss"])


def trained(trainer: Trainer, *group: Assignment) -> list[Epoch]:
    """Train a group and return its epochs."""
    return [event for event in trainer.train(group, tick=lambda: None) if not isinstance(event, KnobRecord)]


def learned(epochs: list[Epoch]) -> list[tuple[int, int, dict[str, float]]]:
    """Return what must be the same in every run: the trial, number and unmeasured metrics of each epoch."""
    return [
        (epoch.trial, epoch.number, {name: value for name, value in epoch.metrics.items() if name not in COSTS})
        for epoch in epochs
    ]


def _order(epoch: tuple[int, int, dict[str, float]]) -> tuple[int, int]:
    return epoch[:2]
