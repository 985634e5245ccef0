"""A worker's view of training: opened once, kept warm, handed one assignment after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onefold import meter
from onefold.training.assignment import Assignment, weights_file
from onefold.training.checkpoint import weights_of
from onefold.training.loop import Splits, evaluate, train
from onefold.training.seeding import seed_everything
from onefold.training.sharing import open_data
from onefold.training.splits import split_of
from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.knobs import Steered
from onefold.vocabulary.records import Config, Epoch, Metrics
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

KEPT_BACK = 0.2  # of the training data, where the user has no validation data
Tick = Callable[[], None]


class Trainer:
    """Trains trials of one workload on one accelerator.

    The seam takes a group of assignments, of which one is the ordinary case.
    """

    def __init__(self, workload: Workload, folder: Path | None, accelerator: str = "cpu") -> None:
        self.workload = workload
        self.device = device_of(accelerator)
        self.meter = meter.choose(accelerator)
        data = open_data(workload, folder / "data" if folder else None)
        whole = split_of(data.train, self.device, "train")
        if whole is None:
            raise WorkloadError(f"data() of {workload.name} has no train part")
        validation = split_of(data.validation, self.device, "validation")
        if validation is None:
            whole, validation = whole.parted(KEPT_BACK)
        self.splits = Splits(whole, validation, split_of(data.test, self.device, "test"))

    @classmethod
    def open(cls, source: str | Workload, folder: str | None, accelerator: str) -> Trainer:
        """The trainer of a workload, given as a reference or as it is."""
        torch.set_num_threads(1)  # a worker that starts must not disturb its neighbours
        workload = load(source) if isinstance(source, str) else source
        return cls(workload, Path(folder) if folder else None, accelerator)

    def train(self, group: Sequence[Assignment], *, tick: Tick) -> Generator[Epoch | Steered, None, None]:
        """Trains the trials of a group within their grants; yields their epochs, and what turning knobs came to."""
        for work in group:
            yield from train(self.workload, self.splits, work, meter=self.meter, device=self.device, tick=tick)

    def score(self, work: Assignment, *, tick: Tick) -> Metrics:
        """The metrics of a trial's best weights on the test data; empty where there is none."""
        weights = weights_file(Path(work.folder), work.trial, work.rung)
        if self.splits.test is None or weights is None:
            return {}
        torch.set_num_threads(work.threads)
        model = self.workload.build(work.config)
        model.load_state_dict(weights_of(weights))
        return evaluate(self.workload, model.to(self.device), self.splits.test, work, tick)

    def pace(self, config: Config, threads: int, seconds: float, *, tick: Tick) -> float:
        """Batches per second of training with this configuration, measured for about `seconds`."""
        torch.set_num_threads(threads)
        seed_everything(0)
        model = self.workload.build(config).to(self.device).train()
        optimizer = self.workload.optimizer(model, config)
        stopwatch = Stopwatch(seconds, tick)
        shuffle = torch.Generator().manual_seed(0)
        while not stopwatch.over:
            batches = stopwatch.timed(self.workload.batches(self.splits.train, config, shuffle))
            self.workload.train_epoch(model, batches, optimizer, config)
        return stopwatch.batches_per_s


class Stopwatch:
    """Counts the batches that pass through it once the first ones have warmed everything up."""

    WARM_UP = 2

    def __init__(self, seconds: float, tick: Tick) -> None:
        self._seconds = seconds
        self._tick = tick
        self._count = -self.WARM_UP
        self._began = time.monotonic()
        self.batches_per_s = 0.0
        self.over = False

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches until the time is over."""
        before = self._count
        for batch in batches:
            now = time.monotonic()
            if self._count == 0:
                self._began = now
            elif self._count > 0 and now - self._began > self._seconds:
                self.batches_per_s = self._count / (now - self._began)
                self.over = True
                return
            self._count += 1
            self._tick()
            yield batch
        if self._count == before:
            raise WorkloadError("the workload gives no batches to train on")


def device_of(accelerator: str) -> torch.device:
    """The torch device of that name; a clear error when this machine has none."""
    try:
        device = torch.device(accelerator)
    except RuntimeError as error:
        raise WorkloadError(f"the accelerator {accelerator!r} is not known; try cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise WorkloadError(
            "the accelerator cuda is not available on this machine; leave --accelerator out to use the CPU"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise WorkloadError(f"there is no accelerator {accelerator!r}; this machine has {torch.cuda.device_count()}")
    return device
