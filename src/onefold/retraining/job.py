"""The specification of one retraining."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from onefold.retraining.contention import ProcessorTimes, thread_times
from onefold.retraining.control import RetrainingControl
from onefold.retraining.options import AUTO
from onefold.retraining.rules import Rules
from onefold.retraining.samples import NewData
from onefold.retraining.strategy import PlanStrategy
from onefold.retraining.time_window import Clock
from onefold.vocabulary.records import Config
from onefold.vocabulary.retraining import DEFAULT_ALPHA, MemoryLesson, RetrainingEvent, RetrainingLimits
from onefold.vocabulary.workload import Workload


@dataclass
class RetrainingJob:
    """A network, new data, limits, and how to plan."""

    network: nn.Module
    data: NewData
    limits: RetrainingLimits
    strategy: PlanStrategy
    rules: Rules
    workload: Workload = field(default_factory=Workload)
    config: Config = field(default_factory=Config)
    name: str = "model"
    device: str = "host"
    machine: str = ""
    signature: str = ""
    lessons: tuple[MemoryLesson, ...] = ()
    priors: tuple[MemoryLesson, ...] = ()  # of the network on other machines: only their gains count
    optimizer: str = AUTO
    metric: str | None = None
    reference_workload: Workload | None = None  # judges the reference set, if the workload cannot
    reference_metric: str | None = None  # its metric then
    new_classes: bool = True  # whether the head grows by classes of the data that it lacks
    alpha: float = DEFAULT_ALPHA
    seed: int = 0
    is_served: bool = False  # whether it has an ONNX file
    save_bytes: int = 0  # of memory that writing the model will need
    save_s: float = 0.0  # that saving takes on the idle reference machine, besides writing files
    lessons_s: float = 0.0  # that storing what plans gained takes there
    written_bytes: int = 0  # that saving writes onto the disk
    exit_s: float = 0.0  # that ending the process takes there, if the window includes it
    control: RetrainingControl = field(default_factory=RetrainingControl)
    started_at: float | None = None  # on the clock; None for now
    on_event: Callable[[RetrainingEvent], None] = lambda _: None
    clock: Clock = time.monotonic
    processor_times: ProcessorTimes = thread_times

    @property
    def current_limits(self) -> RetrainingLimits:
        """The limits as of now: the given ones, or those that replaced them meanwhile."""
        given, control = self.limits, self.control
        return RetrainingLimits(control.memory_bytes or given.memory_bytes, control.window_s or given.window_s)

    @property
    def is_on_cpu(self) -> bool:
        """Whether the memory of the process counts, rather than that of a GPU."""
        return self.data.train.device.type == "cpu"
