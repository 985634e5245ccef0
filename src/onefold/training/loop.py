"""The training loop, to be read from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from onefold.meter import Meter
from onefold.training.assignment import Assignment, seed_of
from onefold.training.checkpoint import Progress, begin
from onefold.training.fixed_knobs import Untouched
from onefold.training.functions import costs_so_far, numbers_of
from onefold.training.knob_session import Steering, steer
from onefold.training.seeding import seed_everything
from onefold.training.splits import FEW, AnySplit
from onefold.vocabulary.errors import NotANumber, WorkloadError
from onefold.vocabulary.knobs import Steered
from onefold.vocabulary.ranking import best_epoch
from onefold.vocabulary.records import Epoch, Measurement, Metrics
from onefold.vocabulary.workload import Workload

# How many samples are scored at a time. Many leave a processor's cache, and take up to three times as long each.
ON_PROCESSOR, ON_ACCELERATOR = 128, 1024


@dataclass(frozen=True)
class Splits:
    """The three parts of the data, ready to use."""

    train: AnySplit
    validation: AnySplit
    test: AnySplit | None


def train(
    workload: Workload,
    splits: Splits,
    work: Assignment,
    *,
    meter: Meter,
    device: torch.device,
    tick: Callable[[], None],
) -> Iterator[Epoch | Steered]:
    """Trains one trial within its grant and yields each epoch, whose checkpoint is on disk by then.

    What is learned depends on the seed, the trial's number, the configuration and the threads, and on nothing else:
    a trial that was cut off and taken up again from its checkpoint ends with the same weights. Knobs that are turned on
    the way change the order in which numbers are added up, and with it their last digits.
    """
    torch.set_num_threads(work.threads)
    progress = begin(workload, work, device)
    steering = steer(work, progress, meter, device, splits.train.loading)

    # Epochs of this rung that an earlier attempt finished are told again; whoever listens knows them by number.
    yield from [epoch for epoch in progress.history if epoch.rung == work.rung]

    # A share of the data is a fixed, nested, balanced subset, and never so small that it shows nothing but noise.
    learn_from = splits.train.share(work.grant.data, at_least=FEW)
    judge_by = splits.validation.share(work.grant.data, at_least=FEW)

    lost = Measurement.nothing()  # on an epoch that had to be begun again
    while not _is_spent(work, progress):
        number = progress.epochs + 1
        seed = seed_of(work.seed, work.trial, number)
        seed_everything(seed)
        shuffle = torch.Generator().manual_seed(seed)

        with meter.window() as window:
            progress.model.train()
            batches = workload.batches(learn_from, work.config, shuffle)
            batches = _until(_deadline(work, progress), _ticking(_some(batches, number), tick))
            trouble = ""
            try:
                batches = steering.steered(batches)
                learned = numbers_of(workload.train_epoch(progress.model, batches, progress.optimizer, work.config))
                _check_finite(learned, number)
            except Exception as error:
                if not steering.is_to_blame(error):
                    raise
                trouble = f"epoch {number} failed with knobs turned and was begun again: {error}"
            finally:
                steering.put_back()
            if not trouble:
                if progress.schedule is not None:
                    progress.schedule.step()
                judged, steering = _scored(workload, progress, judge_by, work, tick, steering)

        if trouble:  # the epoch begins again from the checkpoint, with every knob as it was found
            lost += window.measurement
            steering = steering.given_up(trouble)
            progress = begin(workload, work, device)
            continue

        metrics = {**learned, **judged}
        _check_finite(metrics, number)
        cost, lost = lost + window.measurement, Measurement.nothing()
        reached = work.objective.completed({**metrics, **_costs(progress, cost)})
        epoch = Epoch(work.trial, number, work.rung, reached, cost)
        progress.history.append(epoch)
        if best_epoch([past for past in progress.history if past.rung >= work.since], work.objective) is epoch:
            progress.save_weights(work.best)
        progress.settled = steering.settled
        progress.save(work.checkpoint)
        yield epoch
        if (steered := steering.report(epoch)) is not None:
            yield steered
        steering.expect(_left_s(work, progress))


def evaluate(
    workload: Workload, model: torch.nn.Module, split: AnySplit, work: Assignment, tick: Callable[[], None]
) -> Metrics:
    """The metrics of a model on a split."""
    batches = split.batches(ON_PROCESSOR if split.device.type == "cpu" else ON_ACCELERATOR)
    model.eval()
    with torch.no_grad():
        return numbers_of(workload.evaluate(model, _ticking(batches, tick), work.config))


def _scored(
    workload: Workload,
    progress: Progress,
    split: AnySplit,
    work: Assignment,
    tick: Callable[[], None],
    steering: Steering | Untouched,
) -> tuple[Metrics, Steering | Untouched]:
    """The metrics after an epoch, with the settled knobs; without any, for good, where it cannot be done with them."""
    try:
        with steering.at_rest():
            return evaluate(workload, progress.model, split, work, tick), steering
    except Exception as error:
        if not steering.is_turned_at_rest:
            raise
        steering = steering.given_up(f"scoring failed with knobs turned and was done without: {error}")
    return evaluate(workload, progress.model, split, work, tick), steering


def _is_spent(work: Assignment, progress: Progress) -> bool:
    if work.grant.time_s is not None and progress.cost.time_s >= work.grant.time_s:
        return True
    if progress.epochs >= work.grant.epochs:
        return True
    visited = any(epoch.rung == work.rung for epoch in progress.history)  # each visit trains one epoch at least
    return progress.epochs >= _own_epochs(work) and visited


def _own_epochs(work: Assignment) -> float:
    """How long the trial itself wants to train, where its space tunes that."""
    own = work.config.get("epochs")
    return own if isinstance(own, int) else math.inf


def _deadline(work: Assignment, progress: Progress) -> float:
    """When a granted time is over, on the monotonic clock."""
    if work.grant.time_s is None:
        return math.inf
    return time.monotonic() + work.grant.time_s - progress.cost.time_s


def _some(batches: Iterable[Any], epoch: int) -> Iterator[Any]:
    """The batches, of which there must be one at least: an epoch without any would pass for a perfect one."""
    given = False
    for batch in batches:
        given = True
        yield batch
    if not given:
        raise WorkloadError(
            f"the workload gives no batches to train on in epoch {epoch}; let its batches(split, config, generator) "
            "give one at least"
        )


def _ticking(batches: Iterable[Any], tick: Callable[[], None]) -> Iterator[Any]:
    for batch in batches:
        tick()
        yield batch


def _until(deadline: float, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches that begin before the deadline, one at least."""
    for batch in batches:
        yield batch
        if time.monotonic() > deadline:
            return


def _left_s(work: Assignment, progress: Progress) -> float:
    """About how long the rest of this visit will take."""
    if work.grant.time_s is not None:
        return max(0.0, work.grant.time_s - progress.cost.time_s)
    return max(0, min(work.grant.epochs, _own_epochs(work)) - progress.epochs) * progress.history[-1].measurement.time_s


def _check_finite(metrics: Metrics, epoch: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotANumber(f"{name} became {value} in epoch {epoch}")


def _costs(progress: Progress, latest: Measurement) -> Metrics:
    """What the trial has cost so far and how large its model is, to be used in objectives like any metric."""
    parameters = sum(parameter.numel() for parameter in progress.model.parameters())
    return {"parameters": float(parameters), **costs_so_far(progress.cost + latest)}
