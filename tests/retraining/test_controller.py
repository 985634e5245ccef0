"""Retrainings of small networks: the result is better or unchanged, and within the limits."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ticking_clock import TickingClock
from torch import Tensor, nn
from torch.nn import functional

from onefold import datasets
from onefold.baselines import shifted_datasets
from onefold.baselines.retraining import BASELINES
from onefold.retraining import outcome
from onefold.retraining.allocator import KEEPING, MAPPING, SPARING
from onefold.retraining.control import RetrainingControl
from onefold.retraining.controller import RetrainingController
from onefold.retraining.evaluation import MAX_REFERENCE_LOSS, MIN_SAMPLES, TRIAL_SAMPLES, TRIALS
from onefold.retraining.job import RetrainingJob
from onefold.retraining.memory_monitor import ProcessMemory
from onefold.retraining.micro_windows import FORGETTING_REPLAYED_SHARE
from onefold.retraining.planning_context import MEMORY_MARGIN, PlanningContext, learning_key
from onefold.retraining.rule_file import read_rules
from onefold.retraining.samples import REPLAYED_SHARE, BatchOrder, Reference, split_new_data, split_reference
from onefold.retraining.strategy import GainStrategy, plan_strategy
from onefold.retraining.training_step import Stepper
from onefold.vocabulary.errors import DatasetError, InputError
from onefold.vocabulary.records import Config
from onefold.vocabulary.retraining import (
    EFFECTIVE_BATCH,
    MicroWindow,
    PlanEstimate,
    Reaction,
    RetrainingLimits,
    RetrainingSummary,
)
from onefold.vocabulary.workload import Data, Workload

STRATEGIES = ("onefold", *BASELINES)
PLENTY = 2**40  # bytes; the memory of the machine is the limit then
CPU = torch.device("cpu")
WINDOW_S = 1.0  # on a clock that ticks a millisecond per reading: about 150 updates
ENOUGH = """
[[react]]
name = "seen enough"
when = "best_score > first_score + 0.1 or stalled >= 2"
then = "finish"
say = "enough for the test"
"""


def convolutional(enlarged: int = 1) -> nn.Module:
    """Return a network for digits, which are enlarged first to make activations large."""
    side = 8 * enlarged // 2
    return nn.Sequential(
        nn.Upsample(scale_factor=enlarged),
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * side**2, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


@pytest.fixture(scope="session")
def clean() -> nn.Module:
    """A network trained on clean digits."""
    torch.manual_seed(0)
    network = convolutional()
    images, labels = (torch.from_numpy(part) for part in datasets.digits().train)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(6):
        for places in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(network(images[places]), labels[places]).backward()
            optimizer.step()
    return network.eval()


@pytest.fixture
def network(clean: nn.Module) -> nn.Module:
    return copy.deepcopy(clean)


@pytest.fixture(scope="session")
def fog() -> Data:
    """Digits in fog, with as many validation samples as are always evaluated."""
    data = shifted_datasets.corrupted_digits("fog", 4)
    return replace(data, validation=tuple(part[:MIN_SAMPLES] for part in data.validation))


def retraining(
    network: nn.Module,
    data: Data,
    window_s: float = WINDOW_S,
    memory: int = PLENTY,
    how: str = "onefold",
    more_rules: Path | None = None,
    **more: Any,
) -> RetrainingController:
    rules = read_rules(more_rules)
    clock = more.setdefault("clock", TickingClock())
    if isinstance(clock, TickingClock):
        more.setdefault("processor_times", lambda: (clock.now_s, clock.now_s))
    limits = RetrainingLimits(memory, window_s)
    return RetrainingController(
        RetrainingJob(network, split_new_data(data, CPU), limits, plan_strategy(how, rules, 0.9), rules, **more)
    )


@pytest.fixture
def enough(tmp_path: Path) -> Path:
    (tmp_path / "enough.toml").write_text(ENOUGH)
    return tmp_path / "enough.toml"


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def is_unchanged(network: nn.Module, weights: dict[str, Tensor]) -> bool:
    now = network.state_dict()
    return now.keys() == weights.keys() and all(torch.equal(now[name], value) for name, value in weights.items())


def accuracy(network: nn.Module, part: Any) -> float:
    with torch.no_grad():
        result = network(torch.from_numpy(np.asarray(part[0]))).argmax(1)
    return float((result == torch.from_numpy(np.asarray(part[1]))).float().mean())


def test_a_model_of_clean_digits_improves_in_fog(network: nn.Module, fog: Data) -> None:
    before, before_on_test = accuracy(network, fog.validation), accuracy(network, fog.test)
    events: list[Any] = []
    result = retraining(network, fog, 2.0, on_event=events.append).run()

    assert result.kept_new
    assert result.before == pytest.approx(before)
    assert result.after == pytest.approx(accuracy(network, fog.validation))
    assert result.gain == pytest.approx(result.after - result.before)
    assert accuracy(network, fog.test) > before_on_test + 0.1
    assert result.chosen in {estimate.plan for estimate in result.plans}
    assert [window.number for window in result.windows] == list(range(1, len(result.windows) + 1))
    assert all(window.began_s <= window.ended_s and window.updates and window.samples for window in result.windows)
    assert all(window.ended_s <= other.began_s for window, other in zip(result.windows, result.windows[1:]))
    assert result.windows[-1].ended_s <= result.elapsed_s <= 2.0
    assert [event for event in events if isinstance(event, MicroWindow)] == list(result.windows)
    assert [event for event in events if isinstance(event, Reaction)] == list(result.reactions)
    assert not network.training


@pytest.mark.parametrize("how", STRATEGIES)
def test_no_strategy_returns_a_worse_model(network: nn.Module, fog: Data, how: str) -> None:
    given, clock = weights_of(network), TickingClock()
    result = retraining(network, fog, how=how, clock=clock, on_event=clock.end_after(2)).run()
    assert result.strategy == how
    assert result.windows
    assert result.after >= result.before
    assert result.after == pytest.approx(accuracy(network, fog.validation))
    assert result.chosen in {estimate.plan for estimate in result.plans}
    assert result.kept_new == (not is_unchanged(network, given))


def test_useless_data_leaves_the_model_unchanged(network: nn.Module, fog: Data, enough: Path) -> None:
    random = np.random.default_rng(0)
    nonsense = (fog.train[0], random.integers(0, 10, len(fog.train[1])))
    given = weights_of(network)
    with torch.no_grad():  # on its own predictions the model is perfect
        answers = network(torch.from_numpy(fog.validation[0])).argmax(1).numpy()
    result = retraining(network, Data(nonsense, (fog.validation[0], answers)), more_rules=enough).run()
    assert not result.kept_new
    assert result.after == result.before
    assert result.windows
    assert "given model is returned" in result.why
    assert is_unchanged(network, given)


class Breaking(Workload):
    """A workload whose loss raises an error in the third micro-window."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.windows = error, 0

    def on_event(self, event: Any) -> None:
        self.windows += isinstance(event, MicroWindow)

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        if self.windows > 1:
            raise self.error
        return super().loss(outputs, targets, config)


class Counting(Workload):
    """Records how many samples each evaluation has."""

    def __init__(self) -> None:
        self.samples: list[int] = []

    def evaluate(self, network: nn.Module, batches: Any, config: Config) -> dict[str, float]:
        counted = list(batches)
        self.samples.append(sum(len(targets) for *_, targets in counted))
        return super().evaluate(network, counted, config)


@pytest.mark.parametrize("extra", [0, 100])
def test_the_given_model_is_evaluated_once_on_each_set_of_samples(network: nn.Module, extra: int) -> None:
    """Models are compared on the same samples: all, and the subset if that has fewer."""
    workload = Counting()
    data = shifted_datasets.corrupted_digits("fog", 4)
    data = replace(data, validation=tuple(part[: MIN_SAMPLES + extra] for part in data.validation))
    controller = retraining(network, data, window_s=30.0, workload=workload)
    controller.plan_only()
    trials = [TRIAL_SAMPLES] * TRIALS
    assert workload.samples == trials
    training = controller._training()
    training.plan()
    training.evaluator.limit_subset(0.0)
    training._prepare_comparison()
    given = [MIN_SAMPLES + extra, *[MIN_SAMPLES] * bool(extra)]
    assert workload.samples[len(trials) :] == [*trials, *given, MIN_SAMPLES]  # with new statistics at last


class Journal(Workload):
    """Records evaluations, with the BatchNorm statistics of the network, and micro-windows."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def evaluate(self, network: nn.Module, batches: Any, config: Config) -> dict[str, float]:
        counted = list(batches)
        if sum(len(targets) for *_, targets in counted) > TRIAL_SAMPLES:
            self.entries.append(weights_of(network))
        return super().evaluate(network, counted, config)

    def loss(self, outputs: Any, targets: Any, config: Config) -> Any:
        if len(targets) > 4 and torch.is_grad_enabled() and outputs.requires_grad:  # more than profiling has
            self.entries.append("trained")
        return super().loss(outputs, targets, config)


@pytest.mark.parametrize("how", ["onefold", "static"])
def test_training_begins_before_the_given_model_is_evaluated(network: nn.Module, fog: Data, how: str) -> None:
    given, journal, clock = weights_of(network), Journal(), TickingClock()
    summary = retraining(
        network, fog, how=how, workload=journal, clock=clock, on_event=clock.end_after(1), window_s=10.0
    ).run()
    first = next(number for number, entry in enumerate(journal.entries) if entry != "trained")
    assert first > 0
    assert all(torch.equal(value, given[name]) for name, value in journal.entries[first].items())
    assert summary.first_update_s is not None
    assert summary.first_update_s <= summary.windows[0].began_s + clock.step_s * 5
    if how == "onefold":  # the trained network is evaluated with the statistics that were re-estimated before
        reestimated, trained = journal.entries[first + 1 : first + 3]
        assert torch.equal(reestimated["1.weight"], given["1.weight"])
        assert not torch.equal(reestimated["2.running_mean"], given["2.running_mean"])
        assert torch.equal(reestimated["2.running_mean"], trained["2.running_mean"])
        assert not torch.equal(trained["1.weight"], given["1.weight"])


class SmallBatches(GainStrategy):
    """Offers one plan, with batches that are too small for batch statistics."""

    def plans(self, context: PlanningContext) -> tuple[PlanEstimate, ...]:
        (first, *_) = super().plans(context)
        plan = replace(first.plan, batch_size=4, accumulation=first.plan.effective_batch // 4)
        self.search.offer([context.estimate(plan)])
        return self.search.estimates


def test_small_batches_are_trained_with_statistics_of_the_new_data(network: nn.Module, fog: Data) -> None:
    """They are normalized by running statistics, which have to be re-estimated first."""
    clock = TickingClock()
    work = retraining(network, fog, clock=clock, on_event=clock.end_after(1), window_s=10.0)
    work.job.strategy = SmallBatches(work.job.rules)
    summary = work.run()
    assert summary.reactions[0].rule == "batch norms"
    assert summary.reactions[0].at_s < summary.windows[0].began_s


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_error_restores_the_given_model(network: nn.Module, fog: Data, error: BaseException) -> None:
    given = weights_of(network)
    workload = Breaking(error)
    with pytest.raises(type(error)):
        retraining(network, fog, workload=workload, on_event=workload.on_event).run()
    assert workload.windows == 2
    assert is_unchanged(network, given)
    assert all(weight.requires_grad for weight in network.parameters())
    assert all(weight.is_contiguous() for weight in network.parameters())


class Starving(Workload):
    """A workload whose evaluation runs out of memory from the second micro-window on."""

    def __init__(self) -> None:
        self.windows = 0

    def on_event(self, event: Any) -> None:
        self.windows += isinstance(event, MicroWindow)

    def evaluate(self, network: Any, batches: Any, config: Config) -> Any:
        if self.windows > 1:
            raise MemoryError
        return super().evaluate(network, batches, config)


def test_without_memory_for_evaluation_the_given_model_is_returned(network: nn.Module, fog: Data) -> None:
    given, workload = weights_of(network), Starving()
    result = retraining(network, fog, workload=workload, on_event=workload.on_event).run()
    assert not result.kept_new
    assert "memory ran out" in {item.rule for item in result.reactions}
    assert is_unchanged(network, given)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_rows_with_nan_are_left_out_and_counted(network: nn.Module, fog: Data, value: float) -> None:
    images, checked = fog.train[0].copy(), fog.validation[0].copy()
    images[::50], checked[0] = value, value
    data = Data((images, fog.train[1]), (checked, fog.validation[1]))
    result = retraining(network, data, 4.0).run()
    assert result.kept_new
    assert "loss diverges" not in {item.rule for item in result.reactions}
    assert result.notes == (f"{len(images[::50]) + 1} rows of the new data with NaN or infinity left out.",)


def test_data_without_a_finite_row_is_rejected(network: nn.Module, fog: Data) -> None:
    images = np.full_like(fog.train[0], np.nan)
    with pytest.raises(DatasetError, match="samples have NaN or infinity in them"):
        retraining(network, Data((images, fog.train[1]))).run()


def reference_of(data: Data) -> Reference:
    return split_reference(Data(tuple(part[:400] for part in data.validation)), CPU)


def test_a_model_that_forgets_the_original_data_is_not_accepted(clean: nn.Module, enough: Path) -> None:
    images, labels = datasets.digits().train
    only = Data((-images[labels == 3][:100], labels[labels == 3][:100]))  # one class, inverted
    forgetful = retraining(copy.deepcopy(clean), only, more_rules=enough).run()
    assert forgetful.kept_new  # nothing is known of the original data

    network = copy.deepcopy(clean)
    before = accuracy(network, datasets.digits().test)
    work = retraining(network, only, more_rules=enough)
    work.job.data = replace(work.job.data, reference=reference_of(datasets.digits()))
    result = work.run()
    assert result.reference_before is not None
    assert result.reference_after is not None
    assert result.reference_after >= result.reference_before - MAX_REFERENCE_LOSS
    assert accuracy(network, datasets.digits().test) > before - 0.05
    assert any("of the original data" in note for note in result.notes)


@pytest.mark.parametrize("tick_s", [0.001, 0.012])
def test_the_learning_rate_reaches_its_full_value_in_any_training_time(
    network: nn.Module, fog: Data, tick_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rises in the first tenth of the training time at most, and falls in its second half."""
    rates: list[float] = []
    update = Stepper.update

    def observed(stepper: Stepper, batches: Any, total: int, lr: float) -> float:
        assert stepper.plan is not None
        rates.append(lr / stepper.plan.lr)
        return update(stepper, batches, total, lr)

    monkeypatch.setattr(Stepper, "update", observed)
    retraining(network, fog, clock=TickingClock(tick_s), window_s=3.0).run()
    assert rates[0] < 0.2
    assert max(rates[: len(rates) // 4 + 2]) == 1.0
    assert rates[-1] < 0.4


def test_a_network_that_forgets_replays_more_and_keeps_part_of_its_change(clean: nn.Module) -> None:
    """Inverted digits of two classes are learned at the cost of the others, unless much is replayed and blended."""
    images, labels = datasets.digits().train
    chosen = labels < 2
    work = retraining(copy.deepcopy(clean), Data((-images[chosen], labels[chosen])), window_s=4.0)
    work.job.data = replace(work.job.data, reference=reference_of(datasets.digits()))
    result = work.run()
    assert "replay" in {reaction.rule for reaction in result.reactions}
    assert work.runner.order.replayed_share == FORGETTING_REPLAYED_SHARE
    assert result.kept_new
    assert result.reference_before is not None
    assert result.reference_after is not None
    assert result.reference_after >= result.reference_before - MAX_REFERENCE_LOSS


def test_a_retraining_that_kept_nothing_names_forgetting(clean: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = datasets.digits().train
    work = retraining(copy.deepcopy(clean), Data((-images[labels == 3], labels[labels == 3])))
    work.job.data = replace(work.job.data, reference=reference_of(datasets.digits()))
    monkeypatch.setattr(outcome, "_has_time", lambda *_: False)  # to keep part of the change
    result = work.run()
    assert not result.kept_new
    assert "worse on samples of the original data" in result.why


def test_models_that_were_evaluated_on_all_samples_are_not_evaluated_again(network: nn.Module, fog: Data) -> None:
    workload = Counting()
    windows = len(retraining(network, fog, workload=workload).run().windows)
    evaluated = workload.samples[TRIALS:]
    assert evaluated == [MIN_SAMPLES] * (windows + 2)  # before and after statistics were re-estimated


def test_replayed_samples_are_mixed_into_every_batch() -> None:
    new, old = (Data((np.full((count, 2), count, np.float32), np.arange(count) % 2)) for count in (60, 40))
    data = split_new_data(new, CPU, split_reference(old, CPU))
    assert data.reference is not None
    order = BatchOrder(data.train, 0, data.reference.replayed)
    for _ in range(10):
        inputs, targets = order.batch(order.take(16))
        assert len(inputs) == len(targets)
        assert 0.1 < float((inputs[:, 0] == 40).float().mean()) < 0.6
    assert len(data.reference.judged) == len(data.reference.replayed) == 20


class Digits(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Digits as a torch dataset of single items."""

    def __init__(self, part: Any) -> None:
        self.images, self.labels = part

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return torch.from_numpy(self.images[row]), int(self.labels[row])


@pytest.mark.parametrize("form", ["dataset", "loader", "subset"])
def test_torch_datasets_are_read_like_arrays(fog: Data, form: str) -> None:
    dataset = Digits(fog.train)
    given: Any = {
        "dataset": dataset,
        "loader": torch.utils.data.DataLoader(dataset, batch_size=7),
        "subset": torch.utils.data.Subset(dataset, range(100)),
    }[form]
    count = 100 if form == "subset" else len(dataset)
    arrays = split_new_data(Data(tuple(part[:count] for part in fog.train)), CPU)
    data = split_new_data(Data(given), CPU)
    for rows in (slice(0, 9), slice(9, 18)):
        assert all(torch.equal(one, other) for one, other in zip(data.train.batch(rows), arrays.train.batch(rows)))
    assert len(data.validation) == len(arrays.validation)


class Broken(Digits):
    """Digits whose item 50 is what a function makes of it."""

    def __init__(self, part: Any, broken: Callable[[Any], Any]) -> None:
        super().__init__(part)
        self.broken = broken

    def __getitem__(self, row: int) -> Any:
        return self.broken(super().__getitem__(row)) if row == 50 else super().__getitem__(row)


def unreadable(item: Any) -> Any:
    raise OSError("truncated image")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (unreadable, "item 50 of the dataset cannot be read: truncated image"),
        (lambda item: (item[0], "seven"), "item 50 of the dataset cannot be read: .*; its parts must be tensors"),
        (lambda item: (item[0], [1, 2]), "different shapes; crop or pad"),
    ],
)
def test_items_that_cannot_be_read_are_named(fog: Data, broken: Callable[[Any], Any], why: str) -> None:
    with pytest.raises(DatasetError, match=why):
        split_new_data(Data(Broken(fog.train, broken)), CPU)


def test_text_is_no_data(fog: Data) -> None:
    images, labels = fog.train
    with pytest.raises(DatasetError, match=r"must be numbers, .* got an array of <U"):
        split_new_data(Data((images, labels.astype(str))), CPU)


@pytest.mark.parametrize("is_tuple", [False, True])
def test_datasets_may_have_no_labels(fog: Data, is_tuple: bool) -> None:
    images = torch.from_numpy(fog.train[0])
    dataset: Any = torch.utils.data.TensorDataset(images) if is_tuple else torch.utils.data.Subset(images, range(90))
    data = split_new_data(Data(torch.utils.data.DataLoader(dataset)), CPU)
    assert not data.has_labels
    assert torch.equal(data.train.batch(slice(0, 5))[0], images[data.train.rows[:5]])


class VisionDigits(Digits):
    """Digits like a dataset of torchvision, which has its targets beside the items."""

    def __init__(self, part: Any, target_transform: Any = None) -> None:
        super().__init__(part)
        self.targets, self.target_transform = self.labels.tolist(), target_transform

    def __getitem__(self, row: int) -> tuple[Any, int]:
        image, label = super().__getitem__(row)
        return image, label if self.target_transform is None else self.target_transform(label)


def test_targets_of_datasets_may_be_transformed(fog: Data) -> None:
    plain, turned = (
        split_new_data(Data(VisionDigits(fog.train, transform)), CPU) for transform in (None, lambda label: 9 - label)
    )
    rows = np.arange(50)
    assert torch.equal(turned.train.arrays[-1][rows], 9 - plain.train.arrays[-1][rows])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_precisions_are_retrained(
    network: nn.Module, fog: Data, enough: Path, dtype: torch.dtype
) -> None:
    network.to(dtype)
    result = retraining(network, fog, more_rules=enough).run()
    assert result.kept_new
    assert {weight.dtype for weight in network.parameters()} == {dtype}


def test_a_diverging_loss_is_survived(network: nn.Module, fog: Data) -> None:
    images = fog.train[0].copy()
    images[::50] = 3e38
    result = retraining(network, replace(fog, train=(images, fog.train[1]))).run()
    assert result.after >= result.before
    assert result.after == pytest.approx(accuracy(network, fog.validation))
    assert all(bool(weight.isfinite().all()) for weight in network.state_dict().values())
    assert "loss diverges" in {item.rule for item in result.reactions}


class FallingLimit(ProcessMemory):
    """Count from the initial memory of the process, and after two micro-windows, allow less than the plan needs."""

    def __init__(self, work: RetrainingController) -> None:
        super().__init__()
        self.work, self.initial, self.lowered = work, super().used(), 0

    def used(self) -> int:
        return super().used() - self.initial

    def peak(self) -> int | None:
        result = super().peak()
        return None if result is None else result - self.initial

    def limit(self) -> int:
        if len(self.work.windows) > 1 and not self.lowered:
            self.lowered = self.work.runner.estimate(self.work.windows[1].plan).memory_bytes * 9 // 10
        return self.lowered or PLENTY


@pytest.mark.parametrize(("how", "enlarged"), [("onefold", 8), ("dga", 4)])
def test_cheaper_plans_continue_when_the_limit_falls(fog: Data, how: str, enlarged: int) -> None:
    torch.manual_seed(0)
    clock = TickingClock(1 / 700)
    work = retraining(convolutional(enlarged), fog, how=how, clock=clock, on_event=clock.end_after(3))
    work.memory = FallingLimit(work)
    result = work.run()
    fell = result.windows[1]
    later = result.windows[2:]
    assert later
    assert all(item.limit_bytes < fell.predicted_bytes for item in later)
    assert all(item.predicted_bytes <= item.limit_bytes for item in later)
    assert fell.plan not in {item.plan for item in later}
    for item in result.reactions:  # none if the plan that was to be tried next fits too
        assert item.rule != "memory shrinks" or item.at_s >= fell.ended_s
    assert later[0].loss < result.windows[0].loss  # training was not restarted
    assert result.after >= result.before


def test_malloc_keeps_blocks_only_where_memory_is_plentiful(fog: Data) -> None:
    work = retraining(convolutional(8), fog)
    plan = work.plan_only()[0].plan
    needed = work.runner.estimate(plan).memory_bytes
    for limit, mode in ((PLENTY, KEEPING), (needed + 33_000_000, MAPPING), (needed, SPARING)):
        work.job.control.set_memory(limit)
        assert work.runner._allocation_mode(plan) is mode


@pytest.mark.parametrize("how", [name for name in STRATEGIES if name != "oom-retry"])  # plans nothing
def test_the_least_memory_is_stated(network: nn.Module, fog: Data, how: str) -> None:
    given = weights_of(network)
    with pytest.raises(InputError, match=r"needs at least .* limit is 47.7 MiB.*Set memory to \d+MiB or more"):
        retraining(network, fog, memory=50_000_000, how=how).run()
    assert is_unchanged(network, given)


def test_the_stated_least_memory_is_enough(network: nn.Module, fog: Data, enough: Path) -> None:
    with pytest.raises(InputError) as error:
        retraining(network, fog, memory=50_000_000).run()
    least = int(str(error.value).split("memory to ")[1].split("MiB")[0])
    result = retraining(
        network, fog, memory=(least + 10) * 2**20, more_rules=enough
    ).run()  # the process may have grown since
    assert result.windows


def test_a_window_too_short_for_a_step_is_rejected(network: nn.Module, fog: Data) -> None:
    given = weights_of(network)
    clock = TickingClock()
    with pytest.raises(InputError, match=r"takes at least .* the window is 50 ms; set window to \d+s or more"):
        retraining(network, fog, 0.05, clock=clock).run()
    assert clock.now_s < 0.1  # refused soon, not when all has been profiled and evaluated
    assert is_unchanged(network, given)


class Steering(RetrainingControl):
    """Change the window, stop, or write the control file, after a micro-window."""

    def __init__(self, act: Callable[[RetrainingControl], None], after: int = 2, file: Path | None = None) -> None:
        super().__init__(file)
        self.act, self.after = act, after

    def on_event(self, event: Any) -> None:
        if isinstance(event, MicroWindow) and event.number == self.after:
            self.act(self)


def test_several_plans_are_tried_and_remembered(network: nn.Module, fog: Data) -> None:
    work = retraining(network, fog, 2.0)
    result = work.run()
    tried = list(dict.fromkeys(window.plan for window in result.windows))
    assert len(tried) >= 3
    assert f"none of the {len(tried)} plans that were tried" in result.why
    gained = {lesson.plan: lesson for lesson in work.lessons if lesson.gain_per_s is not None}
    assert gained.keys() == {*tried}
    first = {window.plan: window.gain_per_s for window in reversed(result.windows[1:])}  # the first warms up
    assert {plan: lesson.gain_per_s for plan, lesson in gained.items()} == first
    again = retraining(copy.deepcopy(network), fog, 2.0, lessons=tuple(work.lessons))
    best = max(gained.values(), key=lambda lesson: lesson.gain_per_s or 0.0).plan
    assert learning_key(again.plan_only()[0].plan) == learning_key(best)


def test_a_report_claims_nothing_of_plans_that_were_not_tried(network: nn.Module, fog: Data, enough: Path) -> None:
    stop = Steering(RetrainingControl.stop, after=1)
    result = retraining(network, fog, control=stop, on_event=stop.on_event).run()
    assert result.why == "it had 1 of 1 micro-window; no other plan was tried"


@pytest.mark.parametrize("is_replaying", [False, True])
def test_the_epochs_of_a_plan_are_a_limit(
    network: nn.Module, fog: Data, monkeypatch: pytest.MonkeyPatch, is_replaying: bool
) -> None:
    few = Data(tuple(part[:60] for part in fog.train), fog.validation)
    work = retraining(network, few, 30.0)
    if is_replaying:
        work.job.data = replace(work.job.data, reference=reference_of(datasets.digits()))
    plans, update = work.job.strategy.plans, Stepper.update
    rates: list[float] = []

    def recorded(self: Stepper, batches: Any, count: int, lr: float) -> float:
        rates.append(lr)
        return update(self, batches, count, lr)

    monkeypatch.setattr(Stepper, "update", recorded)

    def short(context: Any) -> Any:
        work.job.strategy.search.offer([replace(item, plan=replace(item.plan, epochs=20)) for item in plans(context)])
        return work.job.strategy.estimates()

    monkeypatch.setattr(work.job.strategy, "plans", short)
    result = work.run()
    assert result.reactions[-1].rule == "epochs"
    samples = sum(window.samples for window in result.windows)
    new_samples = samples * (1 - REPLAYED_SHARE) if is_replaying else samples
    assert 20 * 60 <= new_samples + EFFECTIVE_BATCH < 20 * 60 + 2 * EFFECTIVE_BATCH
    assert rates[-1] < 0.2 * max(rates)  # though most of the window is left


def test_a_trial_that_loses_is_undone(network: nn.Module, fog: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    work = retraining(network, fog, 3.0)
    plans = work.job.strategy.plans

    def with_a_bad_one(context: Any) -> Any:
        first = plans(context)[0]
        work.job.strategy.search.offer([first, replace(first, plan=replace(first.plan, lr=1.0))])
        return work.job.strategy.estimates()

    monkeypatch.setattr(work.job.strategy, "plans", with_a_bad_one)
    result = work.run()
    number = next(window.number for window in result.windows if window.plan.lr == 1.0)
    before, trial, after = result.windows[number - 2 : number + 1]
    assert trial.gain_per_s < 0
    assert after.plan == before.plan
    assert after.score is not None
    assert trial.score is not None
    assert after.score > trial.score + 0.2
    assert after.loss < trial.loss


def test_a_stopped_retraining_returns_its_best_model(network: nn.Module, fog: Data) -> None:
    control = Steering(RetrainingControl.stop)
    result = retraining(network, fog, 4.0, control=control, on_event=control.on_event).run()
    assert len(result.windows) == 2
    assert result.kept_new
    assert result.after == pytest.approx(accuracy(network, fog.validation))
    assert result.after > result.before
    assert "stopped" in {item.rule for item in result.reactions}


def test_a_retraining_that_is_stopped_early_returns_the_given_model(network: nn.Module, fog: Data) -> None:
    control = RetrainingControl()
    control.stop()
    result = retraining(network, fog, 4.0, control=control).run()
    assert not result.windows
    assert result.after >= result.before


@pytest.mark.parametrize("given", ["call", "file"])
def test_the_window_may_become_shorter(network: nn.Module, fog: Data, given: str, tmp_path: Path) -> None:
    file = tmp_path / "control.json"

    def shorten(control: RetrainingControl) -> None:
        if given == "call":
            control.set_window(2.0)
        else:
            file.write_text('{"window": 2.0}')
            control._read_at_s = float("-inf")  # as after a while

    control = Steering(shorten, after=1, file=file)
    result = retraining(network, fog, 4.0, control=control, on_event=control.on_event).run()
    assert result.elapsed_s <= max(2.0, result.windows[0].ended_s + 1.0)
    assert result.limits.window_s == 2.0
    assert "window changes" in {item.rule for item in result.reactions}
    assert result.after >= result.before


def test_the_window_may_become_longer(network: nn.Module, fog: Data) -> None:
    control = Steering(lambda self: self.set_window(4.0), after=1)
    result = retraining(network, fog, 1.0, control=control, on_event=control.on_event).run()
    assert result.windows[-1].ended_s > 1.0
    assert result.elapsed_s <= 4.0


def test_a_useless_control_file_is_reported_and_ignored(network: nn.Module, fog: Data, tmp_path: Path) -> None:
    file = tmp_path / "control.json"
    file.write_text('{"windows": 5}')
    result = retraining(network, fog, control=RetrainingControl(file)).run()
    assert [item.said for item in result.reactions if item.rule == "control file"] == [
        f"{file} is ignored: expected an object with window, memory or stop, got key 'windows'"
    ]


def test_memory_may_be_taken_by_a_call(fog: Data) -> None:
    torch.manual_seed(0)
    clock, control = TickingClock(1 / 700), RetrainingControl()
    ended = clock.end_after(4)

    def on_event(event: Any) -> None:
        ended(event)
        if isinstance(event, MicroWindow) and event.number == 2:
            held = work.runner.held_bytes
            control.set_memory((held + 0.7 * (event.predicted_bytes - held)) / (1 - MEMORY_MARGIN))

    work = retraining(convolutional(8), fog, clock=clock, control=control, on_event=on_event)
    result = work.run()
    later = result.windows[2:]
    assert later
    assert all(item.predicted_bytes <= item.limit_bytes < result.windows[1].limit_bytes for item in later)
    assert later[0].limit_bytes == control.memory_bytes


def test_plans_are_reported_when_none_fits_any_more(network: nn.Module, fog: Data) -> None:
    control = RetrainingControl()

    def on_event(event: Any) -> None:
        if isinstance(event, MicroWindow):
            control.set_memory(1e6)

    result = retraining(network, fog, control=control, on_event=on_event).run()
    assert len(result.windows) == 1
    assert result.chosen in {estimate.plan for estimate in result.plans}
    assert "the memory limit is 977 KiB" in result.reactions[-1].said


def test_a_refusal_names_the_window_as_of_now(network: nn.Module, fog: Data) -> None:
    control = RetrainingControl()
    control.set_window(0.05)
    with pytest.raises(InputError, match="the window is 50 ms"):
        retraining(network, fog, 600.0, control=control).run()


def test_incompatible_data_is_rejected(network: nn.Module, fog: Data) -> None:
    given = weights_of(network)
    images, labels = fog.train
    for data, why in (
        (Data((images[:, :, :6, :6], labels)), r"rejects the new data, samples of shape \(1, 6, 6\)"),
        (Data((images, labels + 50)), "class 59, but the model has 10 classes"),
        (Data((images, labels.astype(np.float32))), "the loss rejects targets"),
    ):
        with pytest.raises(DatasetError, match=why):
            retraining(network, data).run()
        assert is_unchanged(network, given)


def test_weights_without_requires_grad_are_not_trained(network: nn.Module, fog: Data, enough: Path) -> None:
    network[1].weight.requires_grad_(False)
    given = weights_of(network)
    learns = [weight.requires_grad for weight in network.parameters()]
    result = retraining(network, fog, more_rules=enough).run()
    assert result.kept_new
    assert [weight.requires_grad for weight in network.parameters()] == learns
    assert torch.equal(network[1].weight, given["1.weight"])
    assert all(weight.is_contiguous() for weight in network.parameters())


def test_the_memory_format_is_preserved(network: nn.Module, fog: Data, enough: Path) -> None:
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    strides = [weight.stride() for weight in network.parameters()]
    retraining(network, fog, more_rules=enough).run()
    assert [weight.stride() for weight in network.parameters()] == strides


def test_planning_changes_nothing(network: nn.Module, fog: Data) -> None:
    given, strides = weights_of(network), [weight.stride() for weight in network.parameters()]
    plans = retraining(network, fog).plan_only()
    assert 1 < len(plans) <= 10
    assert all(
        estimate.gain_per_s is None and estimate.memory_bytes > 0 and estimate.update_s > 0 for estimate in plans
    )
    assert is_unchanged(network, given)
    assert [weight.stride() for weight in network.parameters()] == strides


def test_failed_planning_changes_nothing(network: nn.Module, fog: Data) -> None:
    strides = [weight.stride() for weight in network.parameters()]
    with pytest.raises(InputError):
        retraining(network, fog, memory=50_000_000).plan_only()
    assert [weight.stride() for weight in network.parameters()] == strides


@pytest.mark.slow  # measures real time
def test_the_window_is_kept_in_a_process_with_many_objects(network: nn.Module, fog: Data) -> None:
    much = [[] for _ in range(8_000_000)]  # type: ignore[var-annotated]
    result = retraining(network, fog, 10.0, how="sage", clock=time.monotonic).run()
    assert result.elapsed_s <= 10.0
    assert much


REAL = """
    import resource
    import torch
    from test_controller import TickingClock, convolutional, retraining
    from onefold.baselines import shifted_datasets
    torch.set_num_threads(1)
    torch.manual_seed(0)
    fog, clock = shifted_datasets.corrupted_digits("fog", 4), TickingClock(2e-3)
    work = retraining(convolutional(8), fog, how="oom-retry", clock=clock, on_event=clock.end_after(1))
    status = dict(line.split(":") for line in open("/proc/self/status"))
    has = int(status["VmData"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (has + 120_000_000,) * 2)
    found = work.run()
    rules = {one.rule for one in found.reactions}
    print(found.after >= found.before, len(found.windows), found.windows[-1].plan.batch_size, *rules, sep="; ")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system's limit is one of Linux")
def test_real_out_of_memory_errors_are_survived() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REAL)],
        capture_output=True, text=True, timeout=300, cwd=__file__.rpartition("/")[0],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    no_worse, windows, batch_size, *rules = done.stdout.strip().split("; ")
    assert no_worse == "True"
    assert int(windows) >= 1
    assert int(batch_size) < 256
    assert "memory ran out" in rules


def test_the_summary_round_trips_through_json(network: nn.Module, fog: Data, enough: Path) -> None:
    from onefold.vocabulary.records import from_json, to_json

    result = retraining(network, fog, more_rules=enough).run()
    assert from_json(RetrainingSummary, to_json(result)) == result
