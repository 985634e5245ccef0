"""The calls that an engine runs in a worker, on the trainer that the set-up of the worker opened.

This module composes: it gives the trainer of a workload the ONNX export of `onefold.serving`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from onefold.training.assignment import Assignment
from onefold.training.function_trainer import Function, FunctionTrainer
from onefold.training.trainer import Tick, Trainer
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.records import Config, Epoch, Metrics
from onefold.vocabulary.workload import Workload


def open_workload(source: str | Workload, folder: str, accelerator: str) -> Trainer:
    """Open the trainer of a workload or of a reference to one; imports torch."""
    from onefold.training.workload_trainer import WorkloadTrainer

    return WorkloadTrainer.open(source, Path(folder), accelerator, export_network)


def open_function(function: Function, folder: str, accelerator: str) -> Trainer:
    """Open the trainer of a plain function."""
    return FunctionTrainer(function, Path(folder), accelerator)


def train(trainer: Trainer, group: Sequence[Assignment], *, tick: Tick) -> Generator[Epoch | KnobRecord, None, None]:
    """Train a group of configurations; report each epoch."""
    yield from trainer.train(group, tick=tick)


def score(trainer: Trainer, assignment: Assignment, *, tick: Tick) -> Generator[None, None, Metrics]:
    """Return the metrics of a trial's best weights on the test data."""
    yield from ()
    return trainer.score(assignment, tick=tick)


def write_reference(
    trainer: Trainer,
    config: Config,
    file: str,
    *,
    tick: Tick,  # noqa: ARG001 - it takes no time
) -> Generator[None, None, int]:
    """Write the reference set of a study's data, and return its number of samples."""
    from onefold.training.reference_set import write_samples  # imports torch

    yield from ()
    return write_samples(trainer.open_model(config).splits.validation, Path(file))


def throughput(
    trainer: Trainer, config: Config, threads: int, seconds: float, *, tick: Tick
) -> Generator[None, None, float]:
    """Return the training throughput of a configuration in batches per second."""
    yield from ()
    return trainer.throughput(config, threads, seconds, tick=tick)


def training_samples(trainer: Trainer, *, tick: Tick) -> Generator[None, None, int | None]:  # noqa: ARG001 - instant
    """Return the number of training samples."""
    yield from ()
    return trainer.training_samples


def test_samples(trainer: Trainer, *, tick: Tick) -> Generator[None, None, int | None]:  # noqa: ARG001 - instant
    """Return the number of test samples."""
    yield from ()
    return trainer.test_samples


def export_network(network: Any, inputs: Sequence[Any], path: Path) -> Path:
    """Export a network to ONNX, or for PyTorch itself if it cannot be exported; return the file that was written."""
    from onefold.serving.export import export
    from onefold.serving.program_export import export_program

    try:
        return export(network, inputs, path)
    except ModelError as error:
        reason = str(error)
    return export_program(network, inputs, path.with_suffix(".pt"), reason)
