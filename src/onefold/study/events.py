"""The events of a running study, for a display, a log, a tracker or a web page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from onefold.vocabulary.records import Config, Metrics, to_json


@dataclass(frozen=True, slots=True)
class RunningRung:
    """A trial that trains right now."""

    trial: int
    rung: int
    level: int
    epochs_done: int
    epochs_granted: int
    threads: int
    time_s: float = 0.0  # training time so far
    time_granted_s: float | None = None  # for budgets of kind `time`


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """The standing of a study at one moment."""

    name: str
    elapsed_s: float = 0.0
    left_s: float | None = None  # an estimate
    trials_started: int = 0
    trials_planned: int = 0
    trials_failed: int = 0
    running: tuple[RunningRung, ...] = ()
    best_trial: int | None = None
    best_config: Config = field(default_factory=Config)
    best_metrics: Metrics = field(default_factory=dict)
    energy_j: float | None = None
    energy_source: str = ""


@dataclass(frozen=True)
class StudyEvent:
    """The base of all events. `progress()` returns the standing of the study right after the event."""

    kind: ClassVar[str] = "event"
    progress: Callable[[], StudyProgress] = field(repr=False, compare=False)

    def facts(self) -> dict[str, Any]:
        """Return the event's own fields as plain JSON values."""
        return {f.name: to_json(getattr(self, f.name)) for f in fields(self) if f.name != "progress"}


@dataclass(frozen=True)
class StudyStarted(StudyEvent):
    """The study runs, from its beginning or from where it stopped."""

    kind = "started"
    study: str
    folder: str


@dataclass(frozen=True)
class ParallelismMeasured(StudyEvent):
    """The number of parallel trials and their threads were measured on this machine."""

    kind = "measured"
    parallel: int
    threads: int
    batches_per_s: Mapping[str, float]  # by arrangement, such as "2 trials x 1 thread"


@dataclass(frozen=True)
class RungStarted(StudyEvent):
    """A trial starts to train at a rung."""

    kind = "trial"
    trial: int
    rung: int
    level: int
    config: Config
    epochs: int
    data: float
    time_s: float | None


@dataclass(frozen=True)
class TrialPromoted(RungStarted):
    """A trial that did well at a lower rung starts to train at the next one."""

    kind = "promoted"


@dataclass(frozen=True)
class TrialForked(RungStarted):
    """The checkpoint of a trial is compressed: by a fork, which is a trial of its own."""

    kind = "fork"


@dataclass(frozen=True)
class EpochFinished(StudyEvent):
    """A trial finished an epoch."""

    kind = "epoch"
    trial: int
    epoch: int
    metrics: Metrics


@dataclass(frozen=True)
class KnobsTuned(StudyEvent):
    """The knobs of a trial were recalled, probed or settled; `note` says which and why."""

    kind = "knobs"
    trial: int
    epoch: int
    note: str


@dataclass(frozen=True)
class ServingMeasured(StudyEvent):
    """The serving cost of a trial's architecture is known on a device, measured now or recalled from the store."""

    kind = "served"
    trial: int
    device: str
    points: int  # serving points that were measured
    recalled: bool
    source: str  # of the latencies: measured, emulated or predicted
    metrics: Metrics
    measured_s: float
    doubts: tuple[str, ...] = ()  # what disturbed the measurement


@dataclass(frozen=True)
class RungFinished(StudyEvent):
    """A trial has a result at a rung."""

    kind = "result"
    trial: int
    rung: int
    level: int
    metrics: Metrics


@dataclass(frozen=True)
class TrialFailed(StudyEvent):
    """A trial failed; the study continues without it."""

    kind = "failed"
    trial: int
    failure: str
    reason: str


@dataclass(frozen=True)
class TrialRetried(StudyEvent):
    """A trial whose worker died is started again from its last checkpoint."""

    kind = "retried"
    trial: int
    reason: str
    attempt: int


@dataclass(frozen=True)
class StageStarted(StudyEvent):
    """A step before or after the trials has begun or advanced."""

    kind = "stage"
    message: str


@dataclass(frozen=True)
class StudyEnded(StudyEvent):
    """The study handed over its winner."""

    kind = "ended"
    reason: str
    study: str
    workload: str
    trial: int
    config: Config
    metrics: Metrics
    test: Metrics


@dataclass(frozen=True)
class Tick(StudyEvent):
    """Nothing happened for a second."""

    kind = "tick"


OnEvent = Callable[[StudyEvent], None]
