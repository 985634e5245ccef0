"""Train a configuration in a new process, as a study would.

`python benchmarks/knob_training/training.py REQUEST` is that process; a request is a record as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onefold.engine.processes import ENVIRONMENT
from onefold.vocabulary.knobs import KnobMemory, KnobOptions, KnobRecord, Phase, StepWindow
from onefold.vocabulary.records import Config, Epoch, Grant, from_json, to_json

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the benchmarks

from knob_training.contention import busy_core


@dataclass(frozen=True)
class TrainingRequest:
    """A training of a workload on a share of its data."""

    workload: str
    knobs: KnobOptions
    epochs: int
    data: float
    seed: int = 0
    config: Config = field(default_factory=Config)  # where it differs from the default
    known: tuple[KnobMemory, ...] = ()  # what earlier jobs learned
    contention_after: int | None = None  # epochs, another process keeps a core busy; None never starts one


@dataclass(frozen=True)
class TrainingResult:
    """The cost of a training, including validation, and what knob tuning did."""

    epochs_s: tuple[float, ...]
    energy_j: float
    energy_source: str
    accuracy: float  # the best on validation data
    records: tuple[KnobRecord, ...]

    @property
    def time_s(self) -> float:
        """Return the time of all epochs."""
        return sum(self.epochs_s)

    @property
    def windows(self) -> list[StepWindow]:
        """Return the windows of all epochs."""
        return [window for record in self.records for window in record.windows]

    @property
    def learned(self) -> tuple[KnobMemory, ...]:
        """Return what similar jobs can reuse."""
        return tuple(record.learned for record in self.records if record.learned is not None)

    def step_times(self, phase: Phase) -> list[float]:
        """Return the time of a step in each window of a phase."""
        return [window.step_s for window in self.windows if window.phase is phase]


def train(request: TrainingRequest, *, contention: bool = False) -> TrainingResult:
    """Train in a new process, under contention if asked for."""
    # The workers of a study are started with an allocator that keeps freed memory; plain torch is not.
    environment = os.environ | ({} if request.knobs.mode == "off" else ENVIRONMENT)
    with busy_core() if contention else nullcontext():
        ended = subprocess.run(
            [sys.executable, __file__, json.dumps(to_json(request))],
            stdout=subprocess.PIPE, text=True, check=True, env=environment,
        )  # fmt: skip
    return from_json(TrainingResult, json.loads(ended.stdout.strip().splitlines()[-1]))


def train_here(request: TrainingRequest) -> TrainingResult:
    """Train in this process."""
    from onefold.training.assignment import Assignment
    from onefold.training.workload_trainer import WorkloadTrainer
    from onefold.vocabulary.objective import Objective
    from onefold.vocabulary.workload_reference import load

    workload = load(request.workload)
    assignment = Assignment(
        trial=0, rung=0, config=workload.space.complete(request.config), seed=request.seed,
        grant=Grant(1, request.epochs, request.data), threads=len(os.sched_getaffinity(0)), max_epochs=request.epochs,
        objective=Objective(maximize="accuracy"), knobs=request.knobs, remembered=request.known,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = WorkloadTrainer(workload, Path(folder))
        training = trainer.train([assignment], tick=lambda: None)
        events = list(_with_contention(training, request.contention_after))
    epochs = [event for event in events if isinstance(event, Epoch)]
    return TrainingResult(
        epochs_s=tuple(epoch.measurement.time_s for epoch in epochs),
        energy_j=sum(epoch.measurement.energy.joules or 0.0 for epoch in epochs),
        energy_source=epochs[-1].measurement.energy.source,
        accuracy=max(epoch.metrics["accuracy"] for epoch in epochs),
        records=tuple(event for event in events if isinstance(event, KnobRecord)),
    )


def _with_contention(events: Iterable[Any], after: int | None) -> Iterator[Any]:
    """Yield the events of a training; keep a core busy after an epoch."""
    with ExitStack() as stack:
        for event in events:
            yield event
            if isinstance(event, Epoch) and event.number == after:
                stack.enter_context(busy_core())


if __name__ == "__main__":
    print(json.dumps(to_json(train_here(from_json(TrainingRequest, json.loads(sys.argv[1]))))))
