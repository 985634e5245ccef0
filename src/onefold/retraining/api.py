"""Retrain a deployed model on new data, within a memory limit and a time window.

    result = onefold.retrain("deploy/", "new/", memory="500MB", window="10m")
    result.summary.before, result.summary.after, result.network

A model folder is updated in place, and only if the new model is better; the previous model is kept in `previous/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onefold.device.catalog import HOST
from onefold.device.catalog import device as catalog_device
from onefold.meter.memory import PROCESS_MEMORY, Peak
from onefold.model_folder import PROFILE, REFERENCE, ModelFolder, check_target, new_generation, open_folder
from onefold.retraining.allocator import existing_objects_frozen, request_huge_pages
from onefold.retraining.control import RetrainingControl
from onefold.retraining.options import RetrainingOptions
from onefold.serving.deployment_files import MODEL
from onefold.serving.weight_exchange import WeightExchange
from onefold.store.home import Home
from onefold.vocabulary.argument_checks import suggest_keywords
from onefold.vocabulary.errors import InputError, OnefoldError, StoreError
from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.quantities import parse_bytes, parse_seconds
from onefold.vocabulary.records import Config
from onefold.vocabulary.retraining import (
    MemoryLesson,
    PlanEstimate,
    RetrainingEvent,
    RetrainingLimits,
    RetrainingSummary,
)
from onefold.vocabulary.workload import Data, Workload

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    from onefold.retraining.controller import RetrainingController
    from onefold.retraining.samples import Reference

DataLike: TypeAlias = "Data | Sequence[Any] | Dataset[Any] | DataLoader[Any] | NDArray[Any] | torch.Tensor | str | Path"

SMALL_DATA_BYTES = 10_000_000  # always read, also beyond the limit: planning then states the memory that is needed
MIN_WINDOW_FACTOR = 2  # shortest window, relative to the time that opening the model took
REPORTED_ALPHA = 0.5  # if alpha is "auto"


@dataclass(frozen=True)
class RetrainingResult:
    """The result of `retrain`."""

    network: nn.Module  # with the new weights, or the given ones if no new model was better
    summary: RetrainingSummary
    folder: Path | None = None  # where the model was saved
    report: Path | None = None  # the HTML report

    def save(self, folder: str | Path) -> Path:
        """Write the weights and the report into a folder, which is created, and return its path."""
        from onefold.retraining.model_update import write_report
        from onefold.training.weights import write_weights

        target = Path(folder)
        with new_generation(target, record=False) as new:
            write_weights(new, self.network.state_dict())
            write_report(new, self.summary)
        return target


@dataclass(frozen=True)
class FeasiblePlans:
    """The result of `plan_retraining`."""

    plans: tuple[PlanEstimate, ...]
    limits: RetrainingLimits


@suggest_keywords
def retrain(
    model: nn.Module | str | Path,
    data: DataLike,
    *,
    memory: str | float | None = None,
    window: str | float = "10m",
    device: str = HOST,
    workload: Workload | None = None,
    save: str | Path | None = None,
    trust: bool = False,
    options: RetrainingOptions | None = None,
    on_event: Callable[[RetrainingEvent], None] | None = None,
) -> RetrainingResult:
    """Retrain a model on new data and return the better one of the given and the new model.

    Args:
        model: A torch module, or the folder of a model that a study or a training saved.
        data: New data: a `Data`, a tuple of arrays with the targets last, a torch `Dataset` or `DataLoader`, or a
            folder with `inputs.npy` and `targets.npy`. A fifth is used for validation, unless the data has a validation
            split. A single array, a `Dataset` of such items, or a folder without targets has no labels: the
            normalization layers of a classifier are adapted to it.
        memory: Limit of the peak memory of the whole process, such as "500MB" or a number of bytes; on a GPU, of the
            GPU's memory. Defaults to the memory that is free.
        window: Time in which everything must be done, such as "10m" or a number of seconds.
        device: "host", "cuda", or a device of the catalog, whose cores and memory become limits.
        workload: Loss and metrics, for a module. A model folder names its own; the default is classification.
            For a folder that is not trusted, give its workload here.
        save: Folder to write the model and the report to. Defaults to the model's folder, which is updated in place.
        trust: Import the workload that the folder names, though this home did not write the folder.
        options: Strategy, rules, optimizer, metric and other options; see `RetrainingOptions`.
        on_event: Called with each event: a `PhaseStarted`, `PlansFound`, `MicroWindow` or `Reaction`.

    Returns:
        The network with its final weights, and a summary with plans, micro-windows and measurements.

    Raises:
        InputError: An argument is invalid, or no plan can keep the limits. The model is unchanged.
        DatasetError: The model cannot be trained on the data. The model is unchanged.
        UntrustedFolder: The folder names a workload, and is not trusted.
    """
    request = _Request(
        model, data, memory, window, device, workload, save, trust, options or RetrainingOptions(), on_event
    )
    with whole_peak() as peak:
        controller = request.open()
        with existing_objects_frozen():
            summary = controller.run()
            request.save_lessons(controller.lessons)
            return request.write(summary, controller, peak)


@suggest_keywords
def plan_retraining(
    model: nn.Module | str | Path,
    data: DataLike,
    *,
    memory: str | float | None = None,
    window: str | float = "10m",
    device: str = HOST,
    workload: Workload | None = None,
    trust: bool = False,
    options: RetrainingOptions | None = None,
    on_event: Callable[[RetrainingEvent], None] | None = None,
) -> FeasiblePlans:
    """Return the plans that fit the limits, with their predicted memory and time, without retraining anything.

    The arguments and exceptions are those of `retrain`.
    """
    request = _Request(
        model, data, memory, window, device, workload, None, trust, options or RetrainingOptions(), on_event
    )
    controller = request.open()
    return FeasiblePlans(controller.plan_only(), controller.job.limits)


@dataclass
class _Request:
    """The arguments of `retrain`, validated and opened by `open`."""

    model: nn.Module | str | Path
    data: DataLike
    memory: str | float | None
    window: str | float
    device: str
    workload: Workload | None
    save: str | Path | None
    trust: bool
    options: RetrainingOptions
    on_event: Callable[[RetrainingEvent], None] | None = None

    @cached_property
    def source(self) -> ModelFolder | None:
        """Return the folder of the model."""
        if not isinstance(self.model, (str, Path)):
            return None
        return open_folder(self.model, trust=self.trust, home=self.options.home)

    @property
    def _is_served(self) -> bool:
        """Whether the folder has an ONNX file, which is to have the new weights too."""
        return self.source is not None and self.source.file(MODEL).is_file()

    @property
    def is_emulated(self) -> bool:
        """Whether this machine stands for the device."""
        return self.device != HOST and not self.device.startswith("cuda")

    def open(self) -> RetrainingController:
        """Check all arguments and open model, data and store."""
        started_at = time.monotonic() if self.options.started_at is None else self.options.started_at
        request_huge_pages()
        from onefold.retraining.controller import RetrainingController
        from onefold.retraining.identity import machine_description, network_signature
        from onefold.retraining.job import RetrainingJob
        from onefold.retraining.messages import short_window_message
        from onefold.retraining.rule_file import read_rules
        from onefold.retraining.samples import split_new_data
        from onefold.retraining.save_cost import save_bytes, written_bytes
        from onefold.retraining.strategy import plan_strategy
        from onefold.retraining.time_reserve import EXIT_S, LESSONS_S, STORE_S, save_s

        options = self.options
        if self.save is not None:
            is_in_place = (
                isinstance(self.model, (str, Path)) and Path(self.save).resolve() == Path(self.model).resolve()
            )
            check_target(self.save, "save", is_replaced=not is_in_place)
        accelerator, device_bytes = self._open_device()
        limits = RetrainingLimits(self._memory_bytes(accelerator, device_bytes), parse_seconds(self.window))
        limits.check()
        options.check()
        alpha = options.fixed_alpha()
        rules = read_rules(options.rules)
        strategy = plan_strategy(options.strategy, rules, alpha, options.seed)
        network, workload, config, name = self._open_model()
        opened_s = time.monotonic() - started_at
        if opened_s > limits.window_s:
            raise InputError(short_window_message(0.0, MIN_WINDOW_FACTOR * opened_s, limits))
        network = network.to(accelerator)
        self.signature = network_signature(network)
        self.machine = machine_description(accelerator)
        profiled = self._read_profile()
        self.exchange = self._open_exchange(network)
        is_saved = self.source is not None or self.save is not None
        lessons_s = LESSONS_S if Home(options.home).has_store else LESSONS_S + STORE_S
        kinds = {"is_served": self._is_served, "is_exchanged": self.exchange is not None}
        return RetrainingController(
            RetrainingJob(
                network=network,
                data=split_new_data(
                    self._open_data(accelerator, limits), accelerator, self._open_reference(accelerator)
                ),
                limits=limits,
                strategy=strategy,
                rules=rules,
                workload=workload,
                config=config,
                name=name,
                device=f"{self.device} (emulated: its cores and its memory)" if self.is_emulated else self.device,
                machine=self.machine,
                signature=self.signature,
                lessons=(*(lesson for lesson in profiled if lesson.machine == self.machine), *self._read_lessons()),
                priors=profiled,
                optimizer=options.optimizer,
                metric=options.metric,
                new_classes=options.new_classes,
                alpha=REPORTED_ALPHA if alpha is None else alpha,
                seed=options.seed,
                started_at=started_at,
                is_served=self._is_served,
                save_bytes=save_bytes(network, **kinds) if is_saved else 0,
                save_s=save_s(network, **kinds) if is_saved else 0.0,
                lessons_s=lessons_s,
                written_bytes=written_bytes(network, self.source.path if self.source else None) if is_saved else 0,
                exit_s=0.0 if options.started_at is None else EXIT_S,
                control=options.control or RetrainingControl(),
                on_event=GuardedCallback(self.on_event),
            )
        )

    def write(self, summary: RetrainingSummary, controller: RetrainingController, peak: Peak) -> RetrainingResult:
        """Write the model and the report, if there is a folder for them. The summary covers that too."""

        def completed(summary: RetrainingSummary) -> RetrainingSummary:
            measured = PROCESS_MEMORY.read(peak) if controller.is_on_cpu else None
            known = [size for size in (summary.peak_bytes, measured) if size is not None]
            return replace(summary, peak_bytes=max(known, default=None), elapsed_s=controller.window.elapsed_s)

        network = controller.job.network
        folder = self.save if self.save is not None else None if self.source is None else self.source.path
        if folder is None:
            return RetrainingResult(network, completed(summary))
        from onefold.retraining.model_update import write_model

        target = Path(folder)
        home, data = Home(self.options.home).path, controller.job.data
        report, summary = write_model(self.source, target, network, data, summary, home, completed, self.exchange)
        return RetrainingResult(network, summary, target, report)

    def save_lessons(self, lessons: Sequence[MemoryLesson]) -> None:
        """Store the memory measurements for later retrainings on this machine."""
        if not lessons:
            return
        with closing(Home(self.options.home).store()) as store, store.transaction():
            for lesson in lessons:
                store.save_lesson(lesson)

    def _read_lessons(self) -> tuple[MemoryLesson, ...]:
        home = Home(self.options.home)
        if not home.has_store:
            return ()
        try:
            with closing(home.store()) as store:
                return tuple(lesson for lesson in store.lessons(self.machine) if lesson.model == self.signature)
        except StoreError:
            raise
        except OnefoldError:
            return ()

    def _read_profile(self) -> tuple[MemoryLesson, ...]:
        """Return what was measured with the model where it was trained."""
        if self.source is None or not (file := self.source.file(PROFILE)).is_file():
            return ()
        from onefold.retraining.offline_profile import read_profile

        return tuple(lesson for lesson in read_profile(file).lessons if lesson.model == self.signature)

    def _open_device(self) -> tuple[torch.device, int | None]:
        """Return the torch device, and the memory of a device of the catalog."""
        import torch

        if self.device == HOST:
            return torch.device("cpu"), None
        if self.device.startswith("cuda"):
            if not torch.cuda.is_available():
                raise InputError(f"device {self.device!r} is not available: torch finds no GPU; use device 'host'")
            return torch.device(self.device), None
        device = catalog_device(self.device, Home(self.options.home).devices)
        torch.set_num_threads(max(1, min(device.cores, torch.get_num_threads())))
        return torch.device("cpu"), device.memory_bytes

    def _memory_bytes(self, accelerator: torch.device, device_bytes: int | None) -> int:
        from onefold.retraining.memory_monitor import monitor_for

        requested = parse_bytes(self.memory) if self.memory is not None else None
        limits = [limit for limit in (requested, device_bytes) if limit is not None]
        return min(limits) if limits else monitor_for(accelerator, None).limit()

    def _open_model(self) -> tuple[nn.Module, Workload, Config, str]:
        from torch import nn

        if isinstance(self.model, (str, Path)):
            from onefold.training.trained_model import load_network

            folder = open_folder(self.model, trust=self.trust, home=self.options.home)
            network, workload, config = load_network(folder, self.workload)
            return network, workload, config, folder.path.name or str(folder.path)
        if not isinstance(self.model, nn.Module):
            kind = type(self.model).__name__
            raise InputError(f"expected a torch module or the folder of a model, got a value of type {kind}")
        return self.model, self.workload or Workload(), self.options.config or Config(), type(self.model).__name__

    def _open_exchange(self, network: nn.Module) -> WeightExchange | None:
        """Return how to give the ONNX file in the folder new weights; None if it has to be exported again."""
        if self.source is None or not self._is_served:
            return None
        return WeightExchange.of(network, self.source.file(MODEL))

    def _open_data(self, accelerator: torch.device, limits: RetrainingLimits) -> Data:
        if isinstance(self.data, (str, Path)):
            from onefold.datasets.new_data import read_data
            from onefold.retraining.memory_monitor import ProcessMemory

            # Data that is read into memory lies in that of the process, also if the limit is a GPU's.
            memory = ProcessMemory(limits.memory_bytes if accelerator.type == "cpu" else None)
            return read_data(
                Path(self.data), max(memory.limit() - memory.used(), SMALL_DATA_BYTES), needs_targets=False
            )
        return self.data if isinstance(self.data, Data) else Data(self.data)

    def _open_reference(self, accelerator: torch.device) -> Reference | None:
        """Return samples of the data that the model was trained for, if there are any."""
        from onefold.datasets.new_data import read_data
        from onefold.retraining.samples import split_reference

        given = self.options.reference
        if given is None and self.source is not None and (file := self.source.file(REFERENCE)).is_file():
            given = read_data(file)
        return None if given is None else split_reference(given, accelerator)


@contextmanager
def whole_peak() -> Iterator[Peak]:
    """Measure the peak memory of the process inside the block, from loading the model to saving it."""
    peak = PROCESS_MEMORY.open()
    try:
        yield peak
    finally:
        PROCESS_MEMORY.close(peak)
