"""The training loop, to be read from top to bottom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from onefold.meter import Meter
from onefold.processes import running_s
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import TrainingState, open_state
from onefold.training.metrics import as_metrics, cost_metrics
from onefold.training.seeds import derive_seed, seed_everything
from onefold.training.splits import MIN_SAMPLES, AnySplit, Splits
from onefold.training.trial_files import checkpoint_file, rung_weights_file
from onefold.training.trial_knobs import TrialKnobs, open_knobs
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import NotANumber, WorkloadError
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.ranking import best_epoch
from onefold.vocabulary.records import Config, Epoch, Measurement, Metrics
from onefold.vocabulary.workload import Workload

# Batch size for scoring. Larger batches leave the cache of a CPU and take up to three times as long per sample.
CPU_BATCH, ACCELERATOR_BATCH = 128, 1024


def train(
    workload: Workload,
    splits: Splits,
    assignment: Assignment,
    folder: Path,
    *,
    meter: Meter,
    device: torch.device,
    tick: Callable[[], None],
) -> Iterator[Epoch | KnobRecord]:
    """Train one trial within its grant and yield each epoch after its checkpoint is written to `folder`.

    The weights depend only on the seed, the trial number, the configuration, the grant and the threads: a trial that is
    interrupted and resumed from its checkpoint ends with the same weights. Tuned knobs change the order of
    floating-point additions, and thereby rounding errors.
    """
    torch.set_num_threads(assignment.threads)
    state = open_state(workload, assignment, folder, device)
    open_session = partial(open_knobs, assignment, meter=meter, device=device, loader=splits.train.loader)
    knobs = open_session(state)

    # Repeat the epochs of this rung that an earlier attempt finished; the receiver knows them by number.
    yield from [epoch for epoch in state.history if epoch.rung == assignment.rung]

    # A share of the data is a fixed, nested, stratified subset, large enough for its metrics not to be noise.
    train_split = splits.train.share(assignment.grant.data, at_least=MIN_SAMPLES)
    validation_split = splits.validation.share(assignment.grant.data, at_least=MIN_SAMPLES)

    lost = Measurement.nothing()  # the cost of epochs that had to be repeated
    while not _is_spent(assignment, state):
        number = state.epochs + 1
        seed = derive_seed(assignment.seed, assignment.trial, number)
        seed_everything(seed)
        shuffle = torch.Generator().manual_seed(seed)

        with meter.window() as window:
            state.model.train()
            batches = workload.batches(train_split, assignment.config, shuffle)
            batches = _until(_deadline(assignment, state), _ticking(_at_least_one(batches, number), tick))
            failure: Exception | None = None
            try:
                batches = knobs.tuned(batches)
                reported = workload.train_epoch(state.model, batches, state.optimizer, assignment.config)
                train_metrics = as_metrics(reported)
                _check_finite(train_metrics, number)
            except Exception as error:
                if not knobs.may_have_caused(error):
                    raise
                failure = error
            finally:
                knobs.restore()
            if failure is None:
                if state.schedule is not None:
                    state.schedule.step()
                validation_metrics, knobs = _validate(
                    workload, state, validation_split, assignment, tick, knobs, open_session
                )

        if failure is not None:  # repeat the epoch from the checkpoint without the knob that changed last
            lost += window.measurement
            settled, suspect = knobs.without_suspect(failure)
            state = open_state(workload, assignment, folder, device)
            state.settled = settled
            note = f"epoch {number} failed with {suspect} and was repeated without it: {headline(failure)}"
            knobs = open_session(state, notes=(note,))
            continue

        metrics: Metrics = {**train_metrics, **validation_metrics}
        _check_finite(metrics, number)
        cost, lost = lost + window.measurement, Measurement.nothing()
        metrics = assignment.objective.completed({**metrics, **_cost_metrics(state, cost)})
        epoch = Epoch(assignment.trial, number, assignment.rung, metrics, cost)
        state.history.append(epoch)
        comparable = [past for past in state.history if past.rung >= assignment.comparable_since]
        if best_epoch(comparable, assignment.objective) is epoch:
            state.save_weights(rung_weights_file(folder, assignment.trial, assignment.rung))
        state.settled = knobs.settled
        state.save(checkpoint_file(folder, assignment.trial))
        yield epoch
        if (record := knobs.report(epoch)) is not None:
            yield record
        knobs.expect(_remaining_s(assignment, state))


def evaluate(
    workload: Workload, model: torch.nn.Module, split: AnySplit, config: Config, tick: Callable[[], None]
) -> Metrics:
    """Return the metrics of a model on a split."""
    batches = split.batches(CPU_BATCH if split.device.type == "cpu" else ACCELERATOR_BATCH)
    model.eval()
    with torch.no_grad():
        return as_metrics(workload.evaluate(model, _ticking(batches, tick), config))


def _validate(
    workload: Workload,
    state: TrainingState,
    split: AnySplit,
    assignment: Assignment,
    tick: Callable[[], None],
    knobs: TrialKnobs,
    open_session: Callable[..., TrialKnobs],
) -> tuple[Metrics, TrialKnobs]:
    """Return the validation metrics, and the next knobs: without those with which validation failed."""
    notes: list[str] = []
    while True:
        try:
            with knobs.for_evaluation():
                ticks = partial(_tick_all, (tick, knobs.return_lent_cores))
                return evaluate(workload, state.model, split, assignment.config, ticks), knobs
        except Exception as error:
            if not knobs.may_have_caused(error):
                raise
            state.settled, suspect = knobs.without_suspect(error)
            notes.append(f"validation failed with {suspect} and was repeated without it: {headline(error)}")
            knobs = open_session(state, notes=notes)


def _is_spent(assignment: Assignment, state: TrainingState) -> bool:
    if assignment.grant.time_s is not None and state.cost.time_s >= assignment.grant.time_s:
        return True
    if state.epochs >= assignment.grant.epochs:
        return True
    has_trained = any(epoch.rung == assignment.rung for epoch in state.history)  # each rung trains at least one epoch
    return state.epochs >= _configured_epochs(assignment.config) and has_trained


def _configured_epochs(config: Config) -> float:
    """Return the `epochs` of the configuration, which a space may tune; infinity without them."""
    epochs = config.get("epochs")
    return epochs if isinstance(epochs, int) else math.inf


def _deadline(assignment: Assignment, state: TrainingState) -> float:
    """Return when the granted time ends, on the clock of `running_s`."""
    if assignment.grant.time_s is None:
        return math.inf
    return running_s() + assignment.grant.time_s - state.cost.time_s


def _at_least_one(batches: Iterable[Any], epoch: int) -> Iterator[Any]:
    """Yield the batches; raise WorkloadError if there are none, as such an epoch would have a loss of zero."""
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        raise WorkloadError(
            f"the workload yields no training batches in epoch {epoch}; "
            "its batches(split, config, generator) must yield at least one"
        )


def _ticking(batches: Iterable[Any], tick: Callable[[], None]) -> Iterator[Any]:
    for batch in batches:
        tick()
        yield batch


def _tick_all(ticks: Iterable[Callable[[], None]]) -> None:
    for tick in ticks:
        tick()


def _until(deadline: float, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches that start before the deadline, at least one."""
    for batch in batches:
        yield batch
        if running_s() > deadline:
            return


def _remaining_s(assignment: Assignment, state: TrainingState) -> float:
    """Estimate how long the rest of this rung takes."""
    if assignment.grant.time_s is not None:
        return max(0.0, assignment.grant.time_s - state.cost.time_s)
    epochs = min(assignment.grant.epochs, _configured_epochs(assignment.config)) - state.epochs
    return max(0, epochs) * state.history[-1].measurement.time_s


def _check_finite(metrics: Metrics, epoch: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotANumber(f"{name} became {value} in epoch {epoch}")


def _cost_metrics(state: TrainingState, latest: Measurement) -> Metrics:
    """Return the size of the model and the cost of the trial so far, for use in objectives."""
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    return {"parameters": float(parameters), **cost_metrics(state.cost + latest)}
