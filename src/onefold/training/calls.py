"""The calls that an engine runs in a worker, over the trainer that its set-up opened there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from onefold.training.assignment import Assignment
from onefold.training.functions import Function, FunctionTrainer
from onefold.vocabulary.knobs import Steered
from onefold.vocabulary.records import Config, Epoch, Metrics
from onefold.vocabulary.workload import Workload

Tick = Callable[[], None]


class AnyTrainer(Protocol):
    """What can serve assignments: a workload's trainer, or a function's."""

    def train(self, group: Sequence[Assignment], *, tick: Tick) -> Generator[Epoch | Steered, None, None]: ...


def open_trainer(source: str | Workload, folder: str | None, accelerator: str) -> AnyTrainer:
    """Sets a worker up for a workload, given as a reference or as it is; torch is imported there and not before."""
    from onefold.training.trainer import Trainer

    return Trainer.open(source, folder, accelerator)


def open_function(function: Function, accelerator: str) -> AnyTrainer:
    """Sets a worker up for a plain function."""
    return FunctionTrainer(function, accelerator)


def train(trainer: AnyTrainer, group: Sequence[Assignment], *, tick: Tick) -> Generator[Epoch | Steered, None, None]:
    """Trains a group; reports each epoch."""
    yield from trainer.train(group, tick=tick)


def score(trainer: Any, work: Assignment, *, tick: Tick) -> Generator[None, None, Metrics]:
    """Scores a trial's checkpoint on the test data."""
    yield from ()
    return trainer.score(work, tick=tick)  # type: ignore[no-any-return]


def pace(trainer: Any, config: Config, threads: int, seconds: float, *, tick: Tick) -> Generator[None, None, float]:
    """Measures how fast a configuration trains with so many threads."""
    yield from ()
    return trainer.pace(config, threads, seconds, tick=tick)  # type: ignore[no-any-return]


def samples(trainer: Any, *, tick: Tick) -> Generator[None, None, int]:  # noqa: ARG001 - it takes no time
    """How many samples there are to train on."""
    yield from ()
    return len(trainer.splits.train)
