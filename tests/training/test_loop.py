"""The training loop is repeatable and resumable, and recovers from knobs that fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_contract import trained

from onefold import Choice, Config, Data, Objective, Space
from onefold.processes import available_cores
from onefold.testing.toy import Lines, Spirals, Troubled
from onefold.training import knob_planner
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import load_weights
from onefold.training.knobs import TrainingContext
from onefold.training.knobs.processor import machine_description
from onefold.training.loop import evaluate
from onefold.training.trial_files import best_weights_file, checkpoint_file
from onefold.training.workload_trainer import WorkloadTrainer, device_of
from onefold.vocabulary.errors import NotANumber, WorkloadError
from onefold.vocabulary.knobs import KnobOptions, KnobRecord, Phase, SettledKnobs
from onefold.vocabulary.records import Epoch, Grant, Metrics, to_json

LOWEST = Objective(minimize="loss")
CONFIG = Config(width=8, layers=1, batch_size=32, optimizer="adam", lr=0.01)


def assignment(epochs: int = 3, rung: int = 0, **grant: Any) -> Assignment:
    granted = Grant(level=1, epochs=epochs, data=1.0, **grant)
    return Assignment(0, rung, CONFIG, granted, seed=1, threads=1, max_epochs=9, objective=LOWEST)


def knob_records(trainer: WorkloadTrainer, work: Assignment) -> list[KnobRecord]:
    return [event for event in trainer.train([work], tick=lambda: None) if isinstance(event, KnobRecord)]


def notes(records: Iterable[Any]) -> list[str]:
    return [note for record in records if isinstance(record, KnobRecord) for note in record.notes]


def learned(epochs: list[Epoch]) -> list[tuple[float, float]]:
    return [(epoch.metrics["train_loss"], epoch.metrics["loss"]) for epoch in epochs]


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few epochs of ten steps be enough to probe all knobs."""
    monkeypatch.setattr(knob_planner, "MAX_STEPS", {"time": 3, "energy": 3})


def test_a_resumed_trial_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = trained(WorkloadTrainer(Spirals(), tmp_path / "whole"), assignment(4))
    interrupted = WorkloadTrainer(Spirals(), tmp_path / "halves").train([assignment(4)], tick=lambda: None)
    first = [next(interrupted), next(interrupted)]
    interrupted.close()
    resumed = trained(WorkloadTrainer(Spirals(), tmp_path / "halves"), assignment(4))
    assert learned(resumed) == learned(whole)
    assert learned(first) == learned(whole[:2])  # type: ignore[arg-type]
    for name, weights in load_weights(checkpoint_file(tmp_path / "whole", 0)).items():
        assert torch.equal(weights, load_weights(checkpoint_file(tmp_path / "halves", 0))[name])


def test_the_weights_of_the_best_epoch_of_a_rung_are_kept(tmp_path: Path) -> None:
    trainer = WorkloadTrainer(Spirals(), tmp_path)
    best = min(trained(trainer, assignment(8)), key=lambda epoch: epoch.metrics["loss"])
    model = trainer.workload.build(CONFIG)
    weights = best_weights_file(tmp_path, 0, 0)
    assert weights is not None
    model.load_state_dict(load_weights(weights))
    metrics = evaluate(trainer.workload, model, trainer.splits.validation, CONFIG, lambda: None)
    assert metrics["loss"] == pytest.approx(best.metrics["loss"])


def test_a_promoted_trial_continues_from_its_checkpoint(tmp_path: Path) -> None:
    trainer = WorkloadTrainer(Spirals(), tmp_path)
    trained(trainer, assignment(2))
    assert [epoch.number for epoch in trained(trainer, assignment(5, rung=1))] == [3, 4, 5]


def test_a_fresh_grant_starts_again(tmp_path: Path) -> None:
    trainer = WorkloadTrainer(Spirals(), tmp_path)
    trained(trainer, assignment(2))
    assert [epoch.number for epoch in trained(trainer, assignment(3, rung=1, fresh=True))] == [1, 2, 3]


class TunedEpochs(Spirals):
    """Has the number of epochs in its space."""

    space = Space(training=dict(epochs=Choice(1), lr=0.01))

    def build(self, config: Config) -> torch.nn.Module:
        return super().build(Config(config, width=8, layers=1))


def test_a_trial_trains_at_most_the_epochs_of_its_configuration(tmp_path: Path) -> None:
    trainer = WorkloadTrainer(TunedEpochs(), tmp_path)
    work = replace(assignment(3), config=TunedEpochs.space.default())
    assert [epoch.number for epoch in trained(trainer, work)] == [1]
    assert [epoch.number for epoch in trained(trainer, work)] == [1], "also when it is resumed"
    higher = replace(work, rung=1, grant=Grant(level=9, epochs=9, data=1.0))
    assert [epoch.number for epoch in trained(trainer, higher)] == [2], "each rung trains at least one epoch"
    longer = replace(assignment(3), trial=1, config=Config(epochs=5, lr=0.01))
    assert [epoch.number for epoch in trained(trainer, longer)] == [1, 2, 3]


def test_the_granted_time_ends_an_epoch_early(tmp_path: Path) -> None:
    epochs = trained(WorkloadTrainer(Spirals(), tmp_path), assignment(10_000, time_s=0.05))
    assert sum(epoch.measurement.time_s for epoch in epochs) >= 0.05
    assert len(epochs) < 10_000


def test_an_epoch_reports_its_cost(tmp_path: Path) -> None:
    last = trained(WorkloadTrainer(Spirals(), tmp_path), assignment(3))[-1]
    assert last.metrics["parameters"] == 8 * 2 + 8 + 2 * 8 + 2
    assert last.metrics["train_time_s"] > last.measurement.time_s > 0
    assert last.measurement.energy.source


def test_a_trial_with_a_corrupt_checkpoint_starts_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = WorkloadTrainer(Spirals(), tmp_path)
    whole = trained(trainer, assignment(2))
    checkpoint_file(tmp_path, 0).write_bytes(b"half a check")
    assert learned(trained(trainer, assignment(2))) == learned(whole)
    assert "starts again" in caplog.text


def test_a_loss_that_is_not_finite_fails_the_trial(tmp_path: Path) -> None:
    work = replace(assignment(), config=Config(trouble="nan", lr=0.1))
    with pytest.raises(NotANumber, match="train_loss became nan in epoch 1"):
        trained(WorkloadTrainer(Troubled(), tmp_path), work)


class Special(Spirals):
    """Overrides the epoch, the schedule and the evaluation."""

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> Metrics:
        rate = optimizer.param_groups[0]["lr"]
        steps = [self.step(model, batch, optimizer, config) for batch in batches]
        return {"batches": float(len(steps)), "rate": rate}

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
        return {"accuracy": 0.5}


def test_the_epoch_the_schedule_and_the_evaluation_can_be_overridden(tmp_path: Path) -> None:
    trainer = WorkloadTrainer(Special(), tmp_path)
    trained(trainer, assignment(2))
    epochs = trained(trainer, assignment(4, rung=1))
    assert {epoch.metrics["batches"] for epoch in epochs} == {10.0}
    rates = [epoch.metrics["rate"] for epoch in epochs]
    assert rates[0] > rates[1]
    assert rates[0] < 0.01, "the schedule is part of the checkpoint"


def test_batches_of_one_sample_are_trained(tmp_path: Path) -> None:
    work = replace(assignment(1), config=Config(CONFIG, batch_size=1))
    (epoch,) = trained(WorkloadTrainer(Special(), tmp_path), work)
    assert epoch.metrics["batches"] == 300.0


class Exhausted(Spirals):
    """Has no batches from its second epoch on."""

    epochs = 0

    def batches(self, split: Any, config: Config, generator: Any = None) -> Iterable[Any]:
        self.epochs += 1
        return super().batches(split, config, generator) if self.epochs < 2 else []


def test_an_epoch_without_batches_is_an_error(tmp_path: Path) -> None:
    training = WorkloadTrainer(Exhausted(), tmp_path).train([assignment(3)], tick=lambda: None)
    assert isinstance(next(training), Epoch)
    with pytest.raises(WorkloadError, match="no training batches in epoch 2"):
        next(training)


class Normed(Spirals):
    """Has a batch norm, which cannot train on a single sample, and a torch `Dataset`."""

    def build(self, config: Config) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(2), super().build(config))

    def data(self) -> Data:
        points, labels = super().data().train
        pairs = torch.utils.data.TensorDataset(torch.as_tensor(points[:97]), torch.as_tensor(labels[:97]))
        return Data(train=pairs, validation=pairs)


def test_a_dataset_whose_last_batch_would_be_one_sample_trains_with_batch_norms(tmp_path: Path) -> None:
    assert len(trained(WorkloadTrainer(Normed(), tmp_path), assignment(2))) == 2


def test_without_validation_data_a_fifth_is_held_out(tmp_path: Path) -> None:
    trainer = WorkloadTrainer(Lines(), tmp_path)
    assert (len(trainer.splits.train), len(trainer.splits.validation)) == (160, 40)
    assert trainer.training_samples == 160


def test_workers_share_one_copy_of_the_arrays(tmp_path: Path) -> None:
    first = WorkloadTrainer(Spirals(), tmp_path)

    class Unreachable(Spirals):
        def data(self) -> Data:
            raise AssertionError("the data are loaded twice")

    second = WorkloadTrainer(Unreachable(), tmp_path)
    assert torch.equal(first.splits.train.tensors[0], second.splits.train.tensors[0])  # type: ignore[union-attr]


class Wrong(Spirals):
    def data(self) -> Any:
        return [1, 2, 3]


def test_data_of_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="must return onefold"):
        WorkloadTrainer(Wrong(), tmp_path)


class Forgetful(Spirals):
    def build(self, config: Config) -> Any:
        super().build(config)  # and no return


def test_a_network_of_another_type_is_refused(tmp_path: Path) -> None:
    trainer = WorkloadTrainer(Forgetful(), tmp_path)
    message = r"build\(\) of forgetful must return a torch.nn.Module, but returned NoneType"
    with pytest.raises(WorkloadError, match=message):
        trained(trainer, assignment())
    with pytest.raises(WorkloadError, match=message):
        trainer.throughput(CONFIG, 1, 0.01, tick=lambda: None)


def test_an_unavailable_accelerator_is_refused() -> None:
    with pytest.raises(WorkloadError, match="unknown accelerator"):
        device_of("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(WorkloadError, match="not available on this machine"):
            device_of("cuda")


@pytest.mark.usefixtures("short_windows")
def test_knobs_are_tuned_settled_for_the_next_rung_and_reused_by_a_similar_job(tmp_path: Path) -> None:
    work = replace(assignment(20), knobs=KnobOptions("on"))
    records = knob_records(WorkloadTrainer(Spirals(), tmp_path), work)
    assert any("probed" in note for note in notes(records))
    memory, *_ = [record.learned for record in records if record.learned is not None]
    higher = replace(assignment(24, rung=1), knobs=KnobOptions("on"))
    records = knob_records(WorkloadTrainer(Spirals(), tmp_path), higher)
    windows = [window for record in records for window in record.windows]
    assert windows[0].phase is Phase.SETTLED, "known from the checkpoint"
    assert all(window.phase is not Phase.FOUND for window in windows)
    similar = replace(assignment(8), knobs=KnobOptions("on"), remembered=(memory,))
    records = knob_records(WorkloadTrainer(Spirals(), tmp_path / "other"), similar)
    assert any("recalled" in note for note in notes(records))


@pytest.mark.usefixtures("short_windows")
def test_tuned_knobs_change_the_result_by_rounding_only(tmp_path: Path) -> None:
    plain = trained(WorkloadTrainer(Spirals(), tmp_path / "plain"), assignment(10))
    tuned = trained(WorkloadTrainer(Spirals(), tmp_path / "tuned"), replace(assignment(10), knobs=KnobOptions("probe")))
    for expected, actual in zip(learned(plain), learned(tuned), strict=True):
        assert actual == pytest.approx(expected, rel=1e-2)


@pytest.mark.usefixtures("short_windows")
def test_an_epoch_that_fails_with_a_knob_is_repeated_without_that_knob(tmp_path: Path) -> None:
    class FailsIfFused(Spirals):
        def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
            if optimizer.param_groups[0]["fused"]:
                raise RuntimeError("not like this")
            return super().step(model, batch, optimizer, config)

    work = replace(assignment(12), knobs=KnobOptions("probe"))
    events = list(WorkloadTrainer(FailsIfFused(), tmp_path / "tuned").train([work], tick=lambda: None))
    assert any("failed with update fused and was repeated without it: not like this" in note for note in notes(events))
    records = [event for event in events if isinstance(event, KnobRecord)]
    assert records[-1].missing["update"] == "an epoch failed with it"
    assert set(records[-1].defaults) >= {"allocator"} - set(records[-1].missing), "the other knobs are still tuned"
    assert any("probed" in note for note in notes(records))
    epochs = [event for event in events if isinstance(event, Epoch)]
    assert [epoch.number for epoch in epochs] == list(range(1, 13))
    plain = trained(WorkloadTrainer(Spirals(), tmp_path / "plain"), assignment(12))
    assert learned(epochs)[-1] == pytest.approx(learned(plain)[-1], rel=1e-2)


def test_a_trial_that_fails_with_the_defaults_fails(tmp_path: Path) -> None:
    class Broken(Spirals):
        def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
            raise RuntimeError("always")

    with pytest.raises(RuntimeError, match="always"):
        trained(WorkloadTrainer(Broken(), tmp_path), replace(assignment(), knobs=KnobOptions("on")))


@pytest.mark.skipif(len(available_cores()) < 2, reason="one core has no threads to choose")
def test_validation_that_fails_with_a_knob_is_repeated_without_that_knob(tmp_path: Path) -> None:
    class FailsWithThreads(Spirals):
        def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
            if torch.get_num_threads() != 1:
                raise RuntimeError("not like this")
            return super().evaluate(model, batches, config)

    trainer = WorkloadTrainer(FailsWithThreads(), tmp_path)
    first = trained(trainer, assignment(1))
    path = checkpoint_file(tmp_path, 0)
    settled = SettledKnobs(this_machine(), Config(threads=2), Phase.SETTLED)
    torch.save({**torch.load(path, weights_only=True), "settled": to_json(settled)}, path)
    work = replace(assignment(3, rung=1), knobs=KnobOptions("on"))
    events = list(trainer.train([work], tick=lambda: None))
    assert any("validation failed with threads 2 and was repeated without it" in note for note in notes(events))
    assert len(first) + sum(isinstance(event, Epoch) for event in events) == 3


def this_machine() -> str:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    return machine_description(TrainingContext(model, optimizer, torch.device("cpu"), tuple(available_cores())))
