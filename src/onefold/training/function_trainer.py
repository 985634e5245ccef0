"""Tune a plain function of a configuration like a workload.

    def f(config): return (config.x - 2) ** 2                       # a number: the metric `value`
    def f(config): return {"loss": …, "size": …}                    # several metrics
    def f(config):                                                  # a generator: each yield is one epoch
        for epoch in itertools.count():
            yield {"accuracy": …}
    def f(config, run): …                                           # `run` has the epochs, data share, seed and folder

In each rung the function starts again, unless it keeps state in `run.folder`. `train_time_s`, `energy_j` and
`memory_bytes` are measured and added to its metrics, unless the function reports metrics of these names itself. While a
generator yields, the knobs of its process are tuned: threads, cores, allocator, frequency and memory limit.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onefold import meter
from onefold.training.assignment import Assignment
from onefold.training.metrics import as_metrics, cost_metrics
from onefold.training.seeds import derive_seed
from onefold.training.trainer import Tick
from onefold.training.trial_files import function_folder, function_knobs_file
from onefold.vocabulary.errors import NotANumber, WorkloadError
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.objective import VALUE
from onefold.vocabulary.records import Config, Epoch, Measurement, Metrics

if TYPE_CHECKING:
    from onefold.training.knob_session import KnobSession
    from onefold.training.trained_model import TrainedModel

Function = Callable[..., Any]
MIN_TUNED_EPOCHS = 12  # fewer do not suffice for tuning knobs


@dataclass(frozen=True, slots=True)
class Run:
    """The budget and the state of one call of a function."""

    trial: int
    epochs: int  # how many values it may report
    data: float  # the share of its data that it should use
    seed: int
    folder: Path  # kept between the rungs of the trial


class FunctionTrainer:
    """Trains configurations by calling a function. It has no dataset and no network."""

    training_samples: int | None = None
    test_samples: int | None = None

    def __init__(self, function: Function, folder: Path, accelerator: str = "cpu") -> None:
        self._function = function
        self._folder = folder
        self._meter = meter.choose(accelerator)

    def train(self, group: Sequence[Assignment], *, tick: Tick) -> Generator[Epoch | KnobRecord, None, None]:
        """Call the function for each assignment; yield the values that it reports as epochs, and what knobs did."""
        for assignment in group:
            yield from self._train_one(assignment, tick)

    def score(self, assignment: Assignment, *, tick: Tick) -> Metrics:  # noqa: ARG002 - required by the seam
        """Return no metrics: a function has no test data."""
        return {}

    def throughput(self, config: Config, threads: int, seconds: float, *, tick: Tick) -> float:  # noqa: ARG002
        """Raise WorkloadError: the epochs of a function are not comparable."""
        raise WorkloadError("the throughput of a plain function cannot be measured")

    def export(self, config: Config, model: str, weights: str | None = None) -> Path:  # noqa: ARG002
        """Raise WorkloadError: a function has no network."""
        _raise_no_network()

    def open_model(
        self,
        config: Config,  # noqa: ARG002
        weights: str | None = None,  # noqa: ARG002
        *,
        tick: Tick = lambda: None,  # noqa: ARG002
    ) -> TrainedModel:
        """Raise WorkloadError: a function has no network."""
        _raise_no_network()

    def _train_one(self, assignment: Assignment, tick: Tick) -> Iterator[Epoch | KnobRecord]:
        random.seed(derive_seed(assignment.seed, assignment.trial))
        values = self._values(assignment)
        cost = Measurement.nothing()
        session = self._session(assignment)
        numbers: Iterable[int] = range(1, assignment.grant.epochs + 1)
        for number in numbers if session is None else session.tuned(numbers):
            tick()
            with self._meter.window() as window:
                value = next(values, None)
            if value is None:
                return
            cost += window.measurement
            metrics = assignment.objective.completed({**cost_metrics(cost), **reported_metrics(value)})
            epoch = Epoch(assignment.trial, number, assignment.rung, metrics, window.measurement)
            yield epoch
            if session is not None and (record := session.report(epoch)).has_content:
                self._save_settled(session, assignment.trial)
                yield record
            if assignment.grant.time_s is not None and cost.time_s >= assignment.grant.time_s:
                return

    def _session(self, assignment: Assignment) -> KnobSession | None:
        """Return what tunes the knobs of the process; None for a function that yields too little for that."""
        is_long = inspect.isgeneratorfunction(self._function) and assignment.grant.epochs >= MIN_TUNED_EPOCHS
        if assignment.knobs.mode == "off" or not is_long:
            return None
        from onefold.training.function_knobs import open_function_knobs  # imports torch

        return open_function_knobs(assignment, self._meter, function_knobs_file(self._folder, assignment.trial))

    def _save_settled(self, session: KnobSession, trial: int) -> None:
        if session.settled is not None:
            from onefold.training.function_knobs import save_settled

            save_settled(session.settled, function_knobs_file(self._folder, trial))

    def _values(self, assignment: Assignment) -> Iterator[Any]:
        arguments: list[Any] = [assignment.config]
        if takes_run(self._function):
            folder = function_folder(self._folder, assignment.trial)
            folder.mkdir(parents=True, exist_ok=True)
            grant, seed = assignment.grant, derive_seed(assignment.seed, assignment.trial)
            arguments.append(Run(assignment.trial, grant.epochs, grant.data, seed, folder))
        if inspect.isgeneratorfunction(self._function):
            yield from self._function(*arguments)
        else:
            yield self._function(*arguments)


def reported_metrics(value: Any) -> Metrics:
    """Return the value that a function reported as metrics; a bare number is the metric `value`.

    Raises NotANumber if one is not finite.
    """
    metrics = as_metrics(value if isinstance(value, Mapping) else {VALUE: value})
    for name, number in metrics.items():
        if not math.isfinite(number):
            raise NotANumber(f"{name} is {number}")
    return metrics


def takes_run(function: Function) -> bool:
    """Return whether a function requires a second positional argument, its `run`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty]
    return len(required) > 1


def uses_budget(function: Function) -> bool:
    """Return whether a function can make use of a budget: it reports several values or takes a `run`."""
    return inspect.isgeneratorfunction(function) or takes_run(function)


def _raise_no_network() -> NoReturn:
    raise WorkloadError("a plain function has no network; give a workload instead")
