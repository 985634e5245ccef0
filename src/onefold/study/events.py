"""What a study tells while it runs: to a display, a log, or a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onefold.vocabulary.records import Config, Metrics


@dataclass(frozen=True, slots=True)
class Underway:
    """A visit being made."""

    trial: int
    rung: int
    level: int
    epochs_done: int
    epochs_granted: int
    threads: int
    time_s: float = 0.0  # of its epochs so far
    time_granted_s: float | None = None  # where seconds are granted


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a study stands."""

    name: str
    elapsed_s: float = 0.0
    left_s: float | None = None  # an estimate
    trials_started: int = 0
    trials_planned: int = 0
    trials_failed: int = 0
    underway: tuple[Underway, ...] = ()
    best_trial: int | None = None
    best_config: Config = field(default_factory=Config)
    best_metrics: Metrics = field(default_factory=dict)
    energy_j: float | None = None
    energy_source: str = ""


@dataclass(frozen=True, slots=True)
class News:
    """Something happened: `kind` says what, `facts` are JSON values, `now()` tells where the study stands after it.

    Kinds: started, measured, trial, promoted, served, epoch, knobs, result, failed, retried, ended; stage for what
    follows the trials; tick when nothing happened for a while.
    """

    kind: str
    facts: Mapping[str, Any]
    now: Callable[[], Snapshot]


Listener = Callable[[News], None]
