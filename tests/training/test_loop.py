"""The training loop on a toy workload: repeatable, resumable, honest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from onefold import Choice, Config, Data, Objective, Space
from onefold.testing.toy import Lines, Spirals, Troubled
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import weights_of
from onefold.training.knobs import Job
from onefold.training.knobs.processor import cores_here, machine_of
from onefold.training.loop import evaluate
from onefold.training.trainer import Trainer, device_of
from onefold.vocabulary.errors import NotANumber, WorkloadError
from onefold.vocabulary.knobs import KnobWish, Phase, Settled, Steered
from onefold.vocabulary.records import Epoch, Grant, Metrics, to_json

LOWEST = Objective(minimize="loss")
CONFIG = Config(width=8, layers=1, batch_size=32, optimizer="adam", lr=0.01)


def visit(folder: Path, epochs: int = 3, rung: int = 0, data: float = 1.0, **options: Any) -> Assignment:
    grant = Grant(level=1, epochs=epochs, data=data, **options)
    return Assignment(0, rung, CONFIG, grant, seed=1, threads=1, most_epochs=9, folder=str(folder), objective=LOWEST)


def run(trainer: Trainer, work: Assignment) -> list[Epoch]:
    return [told for told in trainer.train([work], tick=lambda: None) if isinstance(told, Epoch)]


def steered(trainer: Trainer, work: Assignment) -> list[Steered]:
    return [told for told in trainer.train([work], tick=lambda: None) if isinstance(told, Steered)]


def learned(epochs: list[Epoch]) -> list[tuple[float, float]]:
    return [(epoch.metrics["train_loss"], epoch.metrics["loss"]) for epoch in epochs]


def test_a_trial_cut_off_and_taken_up_again_learns_the_same(tmp_path: Path) -> None:
    trainer = Trainer(Spirals(), None)
    whole = run(trainer, visit(tmp_path / "whole", 4))
    half = trainer.train([visit(tmp_path / "halves", 4)], tick=lambda: None)
    first = [next(half), next(half)]
    half.close()
    again = run(Trainer(Spirals(), None), visit(tmp_path / "halves", 4))
    assert learned(again) == learned(whole)
    assert learned(first) == learned(whole[:2])
    for name, weights in weights_of(tmp_path / "whole" / "trials" / "00000.pt").items():
        assert torch.equal(weights, weights_of(tmp_path / "halves" / "trials" / "00000.pt")[name])


def test_the_weights_of_the_best_epoch_of_a_rung_are_kept(tmp_path: Path) -> None:
    trainer = Trainer(Spirals(), None)
    work = visit(tmp_path, 12)
    epochs = run(trainer, work)
    best = min(epochs, key=lambda epoch: epoch.metrics["loss"])
    model = trainer.workload.build(CONFIG)
    model.load_state_dict(weights_of(work.best))
    again = evaluate(trainer.workload, model, trainer.splits.validation, work, lambda: None)
    assert again["loss"] == pytest.approx(best.metrics["loss"])


def test_a_promoted_trial_continues_from_its_checkpoint(tmp_path: Path) -> None:
    trainer = Trainer(Spirals(), None)
    run(trainer, visit(tmp_path, 2))
    more = run(trainer, visit(tmp_path, 5, rung=1))
    assert [epoch.number for epoch in more] == [3, 4, 5]


def test_a_fresh_grant_begins_again(tmp_path: Path) -> None:
    trainer = Trainer(Spirals(), None)
    run(trainer, visit(tmp_path, 2))
    again = run(trainer, visit(tmp_path, 3, rung=1, fresh=True))
    assert [epoch.number for epoch in again] == [1, 2, 3]


class Brief(Spirals):
    """Knows how long it wants to be trained."""

    space = Space(training=dict(epochs=Choice(1), lr=0.01))

    def build(self, config: Config) -> torch.nn.Module:
        return super().build(Config(config, width=8, layers=1))


def test_a_trial_trains_no_longer_than_its_own_epochs_say(tmp_path: Path) -> None:
    trainer = Trainer(Brief(), None)
    work = replace(visit(tmp_path, 3), config=Brief.space.default())
    assert [epoch.number for epoch in run(trainer, work)] == [1]
    assert [epoch.number for epoch in run(trainer, work)] == [1]  # taken up again, it has had them
    higher = replace(work, rung=1, grant=Grant(level=9, epochs=9, data=1.0))
    assert [epoch.number for epoch in run(trainer, higher)] == [2]  # a visit shows something at least
    longer = replace(visit(tmp_path / "longer", 3), config=Config(epochs=5, lr=0.01))
    assert [epoch.number for epoch in run(trainer, longer)] == [1, 2, 3]


def test_a_granted_time_ends_within_the_epoch(tmp_path: Path) -> None:
    epochs = run(Trainer(Spirals(), None), visit(tmp_path, 1000, time_s=0.2))
    assert sum(epoch.measurement.time_s for epoch in epochs) >= 0.2
    assert len(epochs) < 1000


def test_an_epoch_tells_what_it_cost(tmp_path: Path) -> None:
    last = run(Trainer(Spirals(), None), visit(tmp_path, 3))[-1]
    assert last.metrics["parameters"] == 8 * 2 + 8 + 2 * 8 + 2
    assert last.metrics["train_time_s"] > last.measurement.time_s > 0
    assert last.measurement.energy.source


def test_a_torn_checkpoint_means_beginning_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(Spirals(), None)
    whole = run(trainer, visit(tmp_path, 2))
    (tmp_path / "trials" / "00000.pt").write_bytes(b"half a check")
    assert learned(run(trainer, visit(tmp_path, 2))) == learned(whole)
    assert "starts again" in caplog.text


def test_a_loss_that_is_no_number_ends_the_trial(tmp_path: Path) -> None:
    work = replace(visit(tmp_path), config=Config(trouble="nan", lr=0.1))
    with pytest.raises(NotANumber, match="train_loss became nan in epoch 1"):
        run(Trainer(Troubled(), None), work)


class Special(Spirals):
    """Overrides the whole epoch, the schedule and the evaluation."""

    def schedule(self, optimizer: Any, config: Config, epochs: int) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    def train_epoch(self, model: Any, batches: Iterable[Any], optimizer: Any, config: Config) -> Metrics:
        rate = optimizer.param_groups[0]["lr"]
        steps = [self.step(model, batch, optimizer, config) for batch in batches]
        return {"batches": float(len(steps)), "rate": rate}

    def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
        return {"accuracy": 0.5}


def test_the_epoch_the_schedule_and_the_evaluation_can_be_replaced(tmp_path: Path) -> None:
    trainer = Trainer(Special(), None)
    run(trainer, visit(tmp_path, 2))
    epochs = run(trainer, visit(tmp_path, 4, rung=1))
    assert {epoch.metrics["batches"] for epoch in epochs} == {10.0}
    rates = [epoch.metrics["rate"] for epoch in epochs]
    assert rates[0] > rates[1]
    assert rates[0] < 0.01  # the schedule came out of the checkpoint


def test_batches_of_one_sample_are_trained_on(tmp_path: Path) -> None:
    work = replace(visit(tmp_path, 1), config=Config(CONFIG, batch_size=1))
    epoch = run(Trainer(Special(), None), work)[0]
    assert epoch.metrics["batches"] == 300.0


class Sparing(Spirals):
    """Has no batches from its second epoch on."""

    epochs = 0

    def batches(self, split: Any, config: Config, generator: Any = None) -> Iterable[Any]:
        self.epochs += 1
        return super().batches(split, config, generator) if self.epochs < 2 else []


def test_an_epoch_without_a_batch_is_no_result(tmp_path: Path) -> None:
    training = Trainer(Sparing(), None).train([visit(tmp_path, 3)], tick=lambda: None)
    assert next(training).metrics["train_loss"] > 0
    with pytest.raises(WorkloadError, match="no batches to train on in epoch 2"):
        next(training)


class Normed(Spirals):
    """Has a norm over the batch, which cannot learn from a single sample, and a torch `Dataset`."""

    def build(self, config: Config) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(2), super().build(config))

    def data(self) -> Data:
        points, labels = super().data().train
        pairs = torch.utils.data.TensorDataset(torch.as_tensor(points[:97]), torch.as_tensor(labels[:97]))
        return Data(train=pairs, validation=pairs)


def test_a_dataset_whose_last_batch_would_be_one_sample_trains_with_norms(tmp_path: Path) -> None:
    assert len(run(Trainer(Normed(), None), visit(tmp_path, 2))) == 2


def test_without_validation_data_a_fifth_is_kept_back() -> None:
    trainer = Trainer(Lines(), None)
    assert (len(trainer.splits.train), len(trainer.splits.validation)) == (160, 40)


def test_workers_share_one_copy_of_the_arrays(tmp_path: Path) -> None:
    first = Trainer(Spirals(), tmp_path)

    class Unreachable(Spirals):
        def data(self) -> Data:
            raise AssertionError("the data is there already")

    second = Trainer(Unreachable(), tmp_path)
    assert torch.equal(first.splits.train.tensors[0], second.splits.train.tensors[0])  # type: ignore[union-attr]


class Wrong(Spirals):
    def data(self) -> Any:
        return [1, 2, 3]


def test_data_that_is_no_data_is_refused() -> None:
    with pytest.raises(WorkloadError, match="must return onefold"):
        Trainer(Wrong(), None)


def test_an_accelerator_that_is_not_there_is_refused() -> None:
    with pytest.raises(WorkloadError, match="not known"):
        device_of("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(WorkloadError, match="not available on this machine"):
            device_of("cuda")


def test_pace_is_measured_on_the_real_workload() -> None:
    assert Trainer(Special(), None).pace(CONFIG, 1, 0.01, tick=lambda: None) > 0


def test_knobs_are_tuned_in_a_trial_and_settled_for_its_next_rung(tmp_path: Path) -> None:
    work = replace(visit(tmp_path, 120), knobs=KnobWish("on"))
    told = steered(Trainer(Spirals(), None), work)
    assert any("probed" in note for each in told for note in each.notes)
    (learned,) = [each.learned for each in told if each.learned is not None]
    higher = replace(visit(tmp_path, 150, rung=1), knobs=KnobWish("on"))
    windows = [window for each in steered(Trainer(Spirals(), None), higher) for window in each.windows]
    assert windows[0].phase is Phase.SETTLED, "known from the checkpoint"
    assert all(window.phase is not Phase.FOUND for window in windows)
    similar = replace(visit(tmp_path / "other", 40), knobs=KnobWish("on"), remembered=(learned,))
    told = steered(Trainer(Spirals(), None), similar)
    assert any("recalled" in note for each in told for note in each.notes)


def test_knobs_change_what_is_learned_by_rounding_only(tmp_path: Path) -> None:
    plain = run(Trainer(Spirals(), None), visit(tmp_path / "plain", 12))
    turned = run(Trainer(Spirals(), None), replace(visit(tmp_path / "turned", 12), knobs=KnobWish("on")))
    for one, other in zip(learned(plain), learned(turned), strict=True):
        assert other == pytest.approx(one, rel=1e-2)


def test_an_epoch_that_fails_with_knobs_turned_is_begun_again_without_them(tmp_path: Path) -> None:
    class Particular(Spirals):
        def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
            if optimizer.param_groups[0]["fused"]:
                raise RuntimeError("not like this")
            return super().step(model, batch, optimizer, config)

    work = replace(visit(tmp_path / "turned", 60), knobs=KnobWish("probe"))
    told = list(Trainer(Particular(), None).train([work], tick=lambda: None))
    notes = [note for each in told if isinstance(each, Steered) for note in each.notes]
    assert any("begun again: not like this" in note for note in notes)
    epochs = [each for each in told if isinstance(each, Epoch)]
    assert [epoch.number for epoch in epochs] == list(range(1, 61))
    plain = run(Trainer(Spirals(), None), visit(tmp_path / "plain", 60))
    assert learned(epochs)[-1] == pytest.approx(learned(plain)[-1], rel=1e-2)


def test_a_trial_that_fails_by_itself_fails_with_knobs_too(tmp_path: Path) -> None:
    class Broken(Spirals):
        def step(self, model: Any, batch: Any, optimizer: Any, config: Config) -> Any:
            raise RuntimeError("always")

    work = replace(visit(tmp_path), knobs=KnobWish("on"))
    with pytest.raises(RuntimeError, match="always"):
        steered(Trainer(Broken(), None), work)


def test_scoring_that_fails_with_knobs_turned_is_done_without(tmp_path: Path) -> None:
    class Particular(Spirals):
        def evaluate(self, model: Any, batches: Iterable[Any], config: Config) -> Metrics:
            if torch.get_num_threads() != 1:
                raise RuntimeError("not like this")
            return super().evaluate(model, batches, config)

    settled = Settled(machine_here(), Config(threads=2), Phase.SETTLED)
    if len(cores_here()) < 2:
        pytest.skip("one core has no threads to choose")
    first = run(Trainer(Particular(), None), visit(tmp_path, 1))
    work = replace(visit(tmp_path, 3, rung=1), knobs=KnobWish("on"))
    progress = torch.load(work.checkpoint, weights_only=True)
    torch.save({**progress, "settled": to_json(settled)}, work.checkpoint)
    told = list(Trainer(Particular(), None).train([work], tick=lambda: None))
    assert any("scoring failed" in note for each in told if isinstance(each, Steered) for note in each.notes)
    assert len(first) + sum(isinstance(each, Epoch) for each in told) == 3


def machine_here() -> str:
    model = torch.nn.Linear(1, 1)
    return machine_of(Job(model, torch.optim.SGD(model.parameters()), torch.device("cpu"), cores_here()))
