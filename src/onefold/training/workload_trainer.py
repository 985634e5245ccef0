"""The trainer of workloads: PyTorch networks, trained by the loop of this package."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onefold import meter
from onefold.processes import running_s
from onefold.training.assignment import Assignment
from onefold.training.checkpoint import load_weights
from onefold.training.loop import evaluate, train
from onefold.training.network import build_network
from onefold.training.seeds import seed_everything
from onefold.training.splits import StreamSplit, open_splits
from onefold.training.trained_model import TrainedModel
from onefold.training.trainer import Tick
from onefold.training.trial_files import best_weights_file
from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.records import Config, Epoch, Metrics
from onefold.vocabulary.workload import Workload
from onefold.vocabulary.workload_reference import load

SAMPLE_INPUTS = 8  # samples with which an exported network is checked
Exporter = Callable[[torch.nn.Module, Sequence[torch.Tensor], Path], Path]  # network, inputs, ONNX file


class WorkloadTrainer:
    """Trains the configurations of a workload on one accelerator. Implements `Trainer`."""

    def __init__(
        self, workload: Workload, folder: Path, accelerator: str = "cpu", exporter: Exporter | None = None
    ) -> None:
        self.workload = workload
        self.device = device_of(accelerator)
        self._folder = folder
        self._meter = meter.choose(accelerator)
        self._exporter = exporter
        self.splits = open_splits(workload, self.device, folder / "data")

    @classmethod
    def open(
        cls, source: str | Workload, folder: Path, accelerator: str, exporter: Exporter | None = None
    ) -> WorkloadTrainer:
        """Open the trainer of a workload or of a reference to one in a worker process."""
        torch.set_num_threads(1)  # a worker that starts must not compete with its neighbors
        return cls(load(source) if isinstance(source, str) else source, folder, accelerator, exporter)

    @property
    def training_samples(self) -> int | None:
        """Return the number of training samples; None for an `IterableDataset`."""
        return None if isinstance(self.splits.train, StreamSplit) else len(self.splits.train)

    @property
    def test_samples(self) -> int | None:
        """Return the number of test samples, without test data of validation samples; None for an `IterableDataset`."""
        split = self.splits.validation if self.splits.test is None else self.splits.test
        return None if isinstance(split, StreamSplit) else len(split)

    def train(self, group: Sequence[Assignment], *, tick: Tick) -> Generator[Epoch | KnobRecord, None, None]:
        """Train the trials of a group one after the other; yield their epochs and knob records."""
        for assignment in group:
            yield from train(
                self.workload,
                self.splits,
                assignment,
                self._folder,
                meter=self._meter,
                device=self.device,
                tick=tick,
            )

    def score(self, assignment: Assignment, *, tick: Tick) -> Metrics:
        """Return the metrics of a trial's best weights on the test data; empty without test data or weights."""
        weights = best_weights_file(self._folder, assignment.trial, assignment.rung)
        if self.splits.test is None or weights is None:
            return {}
        torch.set_num_threads(assignment.threads)
        network = self._network(assignment.config, weights).to(self.device)
        return evaluate(self.workload, network, self.splits.test, assignment.config, tick)

    def throughput(self, config: Config, threads: int, seconds: float, *, tick: Tick) -> float:
        """Return the training throughput in batches per second, measured for about `seconds`."""
        torch.set_num_threads(threads)
        seed_everything(0)
        network = build_network(self.workload, config).to(self.device).train()
        optimizer = self.workload.optimizer(network, config)
        counter = ThroughputCounter(seconds, tick)
        shuffle = torch.Generator().manual_seed(0)
        while not counter.is_finished:
            batches = counter.count(self.workload.batches(self.splits.train, config, shuffle))
            self.workload.train_epoch(network, batches, optimizer, config)
        return counter.batches_per_s

    def export(self, config: Config, model: str, weights: str | None = None) -> Path:
        """Write the network of a configuration as it will be served to the ONNX file `model`; return its path.

        A network that cannot be exported to ONNX is written beside it, for PyTorch itself.
        """
        if self._exporter is None:
            raise WorkloadError("this trainer was opened without an exporter; give exporter=…")
        network = self.workload.serving_network(self._network(config, weights), config)
        path = self._exporter(network, self._inputs(SAMPLE_INPUTS), self._folder / model)
        if path.suffix == ".onnx":
            self.workload.finish_export(path, config, self._inputs)
        return path

    def open_model(self, config: Config, weights: str | None = None, *, tick: Tick = lambda: None) -> TrainedModel:
        """Return the network of a configuration with the means to score and fine-tune it on the CPU."""
        on_cpu = self.device.type == "cpu"
        splits = self.splits if on_cpu else open_splits(self.workload, torch.device("cpu"), self._folder / "data")
        return TrainedModel(self.workload, config, self._network(config, weights).eval(), splits, tick=tick)

    def _network(self, config: Config, weights: str | Path | None) -> torch.nn.Module:
        network = build_network(self.workload, config)
        if weights is not None:
            network.load_state_dict(load_weights(self._folder / weights))
        return network

    def _inputs(self, count: int) -> list[torch.Tensor]:
        """Return the inputs of the first validation samples, without their targets."""
        batch = next(iter(self.splits.validation.batches(count)))
        if not isinstance(batch, (tuple, list)):
            raise WorkloadError(f"only networks whose batches are tuples can be exported, not {type(batch).__name__}")
        return list(batch[:-1])


class ThroughputCounter:
    """Counts the batches that pass through it after a warm-up."""

    WARM_UP = 2  # batches

    def __init__(self, seconds: float, tick: Tick) -> None:
        self._seconds = seconds
        self._tick = tick
        self._count = -self.WARM_UP
        self._started = running_s()
        self.batches_per_s = 0.0
        self.is_finished = False

    def count(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches until the time is over."""
        count_before = self._count
        for batch in batches:
            now = running_s()
            if self._count == 0:
                self._started = now
            elif self._count > 0 and now - self._started > self._seconds:
                self.batches_per_s = self._count / (now - self._started)
                self.is_finished = True
                return
            self._count += 1
            self._tick()
            yield batch
        if self._count == count_before:
            raise WorkloadError("the workload yields no training batches")


def device_of(accelerator: str) -> torch.device:
    """Return the torch device of this name; raises WorkloadError if this machine has no such device."""
    try:
        device = torch.device(accelerator)
    except RuntimeError as error:
        raise WorkloadError(f"unknown accelerator {accelerator!r}; give cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise WorkloadError(
            f'accelerator={accelerator!r} is not available on this machine; use the default accelerator="cpu"'
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise WorkloadError(f"accelerator={accelerator!r} does not exist; this machine has {torch.cuda.device_count()}")
    return device
