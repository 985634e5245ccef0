"""The seam between a study and a training framework."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onefold.training.assignment import Assignment
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.records import Config, Epoch, Metrics

if TYPE_CHECKING:
    from onefold.training.trained_model import TrainedModel

Tick = Callable[[], None]  # called at least once per batch, so that the engine can tell slow from hanging


class Trainer(Protocol):
    """Trains, scores and exports the configurations of one study.

    A worker opens one trainer with the folder of its study and uses it for every call, one at a time. Names of files in
    arguments are relative to that folder, so that calls can travel to workers that see it elsewhere.

    Every implementation passes `TrainerContract` in `tests/training`.
    """

    @property
    def training_samples(self) -> int | None:
        """Return the number of training samples; None if the trainer has no dataset."""

    @property
    def test_samples(self) -> int | None:
        """Return the number of test samples, without test data of validation samples; None if it is unknown."""

    def train(self, group: Sequence[Assignment], *, tick: Tick) -> Generator[Epoch | KnobRecord, None, None]:
        """Train a group of configurations within their grants; a group of one is the ordinary case.

        Yields every epoch after its checkpoint is durable, and what knob tuning did in it. The epochs of one trial are
        in order; those of different trials may interleave. Closing the generator stops the training. An assignment that
        was interrupted continues from its checkpoint: it yields the finished epochs of its rung again and ends with the
        same result. The result depends on the assignment (its seed, trial, configuration, grant and threads) only.

        Raises NotANumber if a metric is not finite; other exceptions come from the code of the user.
        """

    def score(self, assignment: Assignment, *, tick: Tick) -> Metrics:
        """Return the metrics of a trial's best weights on the test data; empty without test data or weights."""

    def throughput(self, config: Config, threads: int, seconds: float, *, tick: Tick) -> float:
        """Return the training throughput in batches per second, measured for about `seconds`.

        Raises WorkloadError if this trainer cannot measure it.
        """

    def export(self, config: Config, model: str, weights: str | None = None) -> Path:
        """Write the network of a configuration as it will be served to the ONNX file `model`; return its path.

        `weights` names a file of weights to load; without it the network has random weights. Raises ModelError if the
        network cannot be exported, WorkloadError if this trainer has no network.
        """

    def open_model(self, config: Config, weights: str | None = None, *, tick: Tick = lambda: None) -> TrainedModel:
        """Return the network of a configuration with the means to score and fine-tune it on the CPU.

        `weights` is as in `export`. Raises WorkloadError if this trainer has no network.
        """
