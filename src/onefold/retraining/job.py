"""The description of one retraining: model, data, limits and how to plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from onefold.retraining.rules import Rules
from onefold.retraining.samples import NewData
from onefold.retraining.strategy import PlanStrategy
from onefold.vocabulary.records import Config
from onefold.vocabulary.retraining import (
    DEFAULT_ALPHA,
    MemoryLesson,
    MicroWindow,
    PlanEstimate,
    Reaction,
    RetrainingLimits,
)
from onefold.vocabulary.workload import Workload

RetrainingEvent = MicroWindow | Reaction | tuple[PlanEstimate, ...] | str


@dataclass
class RetrainingJob:
    """What is to be retrained, on what, within what."""

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
    optimizer: str = "adam"
    metric: str | None = None
    alpha: float = DEFAULT_ALPHA
    seed: int = 0
    afterwards_bytes: int = 0  # that will be needed once it is done, to write the model
    afterwards_s: float = 0.0
    began: float | None = None  # on the monotonic clock; now without it
    tell: Callable[[RetrainingEvent], None] = lambda _: None
