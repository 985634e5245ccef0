"""Any plain function of a configuration, tuned like a workload.

    def f(config): return (config.x - 2) ** 2                       # a number: the metric `value`
    def f(config): return {"loss": …, "size": …}                    # several metrics
    def f(config):                                                  # a generator: one yield is one epoch
        for epoch in itertools.count():
            yield {"accuracy": …}
    def f(config, run): …                                           # also told its `run`: epochs, data, seed, folder

A promoted function starts again from nothing, unless it keeps its state in `run.folder`. Besides what it reports it has
the metrics `train_time_s`, `energy_j` and `memory_bytes` of its visit so far; its own of such a name take their place.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onefold import meter
from onefold.training.assignment import Assignment, seed_of
from onefold.vocabulary.errors import NotANumber, WorkloadError
from onefold.vocabulary.records import Epoch, Measurement, Metrics

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Run:
    """What a function may want to know of the visit it serves."""

    trial: int
    epochs: int  # how many values it may report in all
    data: float  # which share of its data it should use
    seed: int
    folder: Path  # its own, kept between visits


class FunctionTrainer:
    """Serves assignments by calling a function."""

    def __init__(self, function: Function, accelerator: str = "cpu") -> None:
        self._function = function
        self._meter = meter.choose(accelerator)

    def train(self, group: Sequence[Assignment], *, tick: Callable[[], None]) -> Generator[Epoch, None, None]:
        """Calls the function for each assignment; yields what it reports as epochs."""
        for work in group:
            yield from self._serve(work, tick)

    def _serve(self, work: Assignment, tick: Callable[[], None]) -> Iterator[Epoch]:
        random.seed(seed_of(work.seed, work.trial))
        values = self._values(work)
        cost = Measurement.nothing()
        for number in range(1, work.grant.epochs + 1):
            tick()
            with self._meter.window() as window:
                value = next(values, None)
            if value is None:
                return
            cost += window.measurement
            reached = work.objective.completed({**costs_so_far(cost), **metrics_of(value)})
            yield Epoch(work.trial, number, work.rung, reached, window.measurement)
            if work.grant.time_s is not None and cost.time_s >= work.grant.time_s:
                return

    def _values(self, work: Assignment) -> Iterator[Any]:
        extra: list[Any] = []
        if takes_run(self._function):
            folder = Path(work.folder) / "trials" / f"{work.trial:05d}"
            folder.mkdir(parents=True, exist_ok=True)
            seed = seed_of(work.seed, work.trial)
            extra = [Run(work.trial, work.grant.epochs, work.grant.data, seed, folder)]
        if inspect.isgeneratorfunction(self._function):
            yield from self._function(work.config, *extra)
        else:
            yield self._function(work.config, *extra)


def metrics_of(value: Any) -> Metrics:
    """What a function reported, as metrics: a number is called `value`."""
    metrics = numbers_of(value if isinstance(value, Mapping) else {"value": value})
    for name, number in metrics.items():
        if not math.isfinite(number):
            raise NotANumber(f"{name} is {number}")
    return metrics


def costs_so_far(cost: Measurement) -> Metrics:
    """What was spent, as metrics to be used in objectives like any other; what is not known is left out."""
    costs = {"train_time_s": cost.time_s}
    if cost.energy.joules is not None:
        costs["energy_j"] = cost.energy.joules
    if cost.memory_bytes is not None:
        costs["memory_bytes"] = float(cost.memory_bytes)
    return costs


def numbers_of(named: Mapping[str, Any]) -> Metrics:
    """Reported values as plain numbers, whatever numpy or torch made of them."""
    metrics: dict[str, float] = {}
    for name, number in named.items():
        try:
            metrics[str(name)] = float(number)
        except (TypeError, ValueError):
            raise WorkloadError(f"metrics are numbers by name, but {name} is {number!r}") from None
    return metrics


def takes_run(function: Function) -> bool:
    """Whether a function wants to know its run besides the configuration."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty]
    return len(needed) > 1


def reports_often(function: Function) -> bool:
    """Whether a function can use a budget: it reports several values or is told its run."""
    return inspect.isgeneratorfunction(function) or takes_run(function)
