"""The unit of work that a study sends to a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from onefold.vocabulary.knobs import KnobMemory, KnobOptions
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config, Grant


@dataclass(frozen=True, slots=True)
class Assignment:
    """Train one trial in one rung. The record is picklable and contains no local path."""

    trial: int
    rung: int
    config: Config
    grant: Grant
    seed: int
    threads: int
    max_epochs: int  # epochs of the full budget, which learning-rate schedules span
    objective: Objective  # decides which epoch is the best
    comparable_since: int = 0  # the lowest rung whose epochs used the same share of the data
    knobs: KnobOptions = field(default_factory=KnobOptions)
    remembered: tuple[KnobMemory, ...] = ()  # the best knobs of earlier jobs
