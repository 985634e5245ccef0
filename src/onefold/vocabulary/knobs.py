"""Records about knobs: how a study tunes them, what each window of steps measured, and what is remembered.

A knob is a system parameter of training (threads, memory format, precision, …). Only performance counters and shares
of a job are kept, never its data or its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.records import Config
from onefold.vocabulary.signature import suggest_fields

KnobMode = Literal["off", "on", "probe", "recall"]
OptimizeKnobsFor = Literal["time", "energy"]
Probing = Literal["few", "grid", "halving"]
KNOB_PREFIX = "knob_"  # marks the parameters of a search space that are knobs


@suggest_fields
@dataclass(frozen=True, slots=True)
class KnobOptions:
    """How a study tunes the knobs of its trials.

    Attributes:
        mode: `on` reuses the knobs of a similar job and probes if there is none; `probe` and `recall` do only the one
            or the other; `off` leaves every knob at its default.
        optimize_for: What a training step should cost less of, `time` or `energy`.
        probing: The search: `few` tunes one knob after the other, `grid` tries every combination, `halving` applies
            successive halving to all combinations.
        similarity: The clusterer that groups earlier jobs by their profiles: KMeans, or AgglomerativeClustering, Birch,
            DBSCAN, HDBSCAN, MeanShift or OPTICS of scikit-learn.
        reduced: Whether knobs may reduce the numeric precision, as long as the training loss does not rise.
    """

    mode: KnobMode = "off"
    optimize_for: OptimizeKnobsFor = "time"
    probing: Probing = "few"
    similarity: str = "KMeans"
    reduced: bool = False

    def check(self) -> None:
        """Raise InputError for the first option with an unknown value."""
        for name, given, known in (
            ("knob mode", self.mode, get_args(KnobMode)),
            ("value of optimize_for", self.optimize_for, get_args(OptimizeKnobsFor)),
            ("probing strategy", self.probing, get_args(Probing)),
        ):
            if given not in known:
                raise InputError(unknown(name, given, known))


class Phase(Enum):
    """The purpose of a window of steps."""

    FOUND = "found"  # measure the default knobs
    PROBED = "probed"  # measure a candidate
    SETTLED = "settled"  # train with the best candidate
    RECALLED = "recalled"  # train with the knobs of a similar job


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Consecutive training steps of a trial with the same knobs, and the cost of one step."""

    phase: Phase
    knobs: Config
    steps: int
    step_s: float
    step_j: float | None  # None if the energy is unknown
    source: str = "unavailable"  # of the energy


@dataclass(frozen=True, slots=True)
class SettledKnobs:
    """The knobs that a trial keeps for its next rungs on the same kind of machine."""

    machine: str
    setting: Config
    phase: Phase


@dataclass(frozen=True, slots=True)
class JobProfile:
    """How a training job uses the machine, as a vector of features."""

    features: Mapping[str, float]
    made_of: tuple[str, ...]  # their sources: `operators`, `process`, `software events`, `hardware events`


@dataclass(frozen=True, slots=True)
class KnobMemory:
    """The best knobs of a job, for similar jobs on the same kind of machine."""

    machine: str
    aim: str  # what the knobs were optimized for
    reduced: bool
    profile: JobProfile
    knobs: Config
    found: float  # cost of a step with the default knobs, in seconds or joules depending on `aim`
    reached: float  # cost of a step with the best knobs

    @property
    def gain(self) -> float:
        """Return the factor by which a step became cheaper."""
        return self.found / self.reached if self.reached else 1.0


@dataclass(frozen=True, slots=True)
class KnobRecord:
    """What knob tuning did during one epoch of a trial."""

    trial: int
    rung: int
    epoch: int
    windows: tuple[StepWindow, ...] = ()
    profile: JobProfile | None = None  # if this epoch profiled the job
    learned: KnobMemory | None = None  # if this epoch found the best knobs
    notes: tuple[str, ...] = ()  # decisions with their reasons
    missing: Mapping[str, str] = field(default_factory=dict)  # unavailable knobs, with the reason for each


def knob_gain(records: Iterable[KnobRecord]) -> tuple[StepWindow, StepWindow] | None:
    """Return the fastest window of a trial with the default knobs and the median window with its final knobs.

    The fastest default window is the baseline because the first steps of any training are slow, which must not count
    as a gain. None if the trial has no window of either kind.
    """
    windows = [window for record in records for window in record.windows]
    default = next((window.knobs for window in windows if window.phase is Phase.FOUND), None)
    before = [w for w in windows if w.knobs == default and w.phase in (Phase.FOUND, Phase.PROBED)]
    final = [window for window in windows if window.phase in (Phase.SETTLED, Phase.RECALLED)]
    final = sorted((w for w in final if w.knobs == final[-1].knobs), key=lambda window: window.step_s)
    return (min(before, key=lambda window: window.step_s), final[len(final) // 2]) if before and final else None


def changed_knobs(before: StepWindow, after: StepWindow) -> Config:
    """Return the knobs of `after` whose values differ from those of `before`."""
    return Config({name: value for name, value in after.knobs.items() if before.knobs.get(name) != value})
