"""Records about knobs: how a study tunes them, what each window of steps measured, and what is remembered.

A knob is a system parameter of training (threads, memory format, precision, …). Only performance counters and shares
of a job are kept, never its data or its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any, Literal, get_args

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import InputError, unknown
from onefold.vocabulary.records import Config, Value

KnobMode = Literal["off", "on", "probe", "recall"]
OptimizeKnobsFor = Literal["time", "energy"]
Probing = Literal["few", "grid", "halving"]
FUNCTION_KNOBS = frozenset({"threads", "cores", "allocator", "frequency_khz", "memory_gib"})
KNOB_NAMES = FUNCTION_KNOBS | {"gpus", "loaders", "memory_format", "precision", "tf32", "update", "compile"}
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
        options: The knobs to tune and their values, the group `system` of the space; empty for all of both.
    """

    mode: KnobMode = "off"
    optimize_for: OptimizeKnobsFor = "time"
    probing: Probing = "few"
    similarity: str = "KMeans"
    reduced: bool = False
    options: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

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
    COMPARED = "compared"  # measure the default knobs and the chosen ones in turn, to know the gain
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
    started_at: float | None = None  # Unix time
    load: float | None = None  # cores that other processes kept busy, of those that the trial may use


@dataclass(frozen=True, slots=True)
class SettledKnobs:
    """The knobs that a trial keeps for its next rungs on the same kind of machine.

    In the phase `found` none are settled, but some may have been given up.
    """

    machine: str
    setting: Config
    phase: Phase
    given_up: tuple[str, ...] = ()  # knobs with which an epoch failed


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
    reached: float  # cost of a step with the best knobs, measured in turn with `found`
    load: float = 0.0  # cores that other processes kept busy

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
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the available knobs
    in_use: Config | None = None  # the settled knobs at the end of the epoch; None before
    untunable: str = ""  # why the training loop cannot be tuned; empty if it can

    @property
    def has_content(self) -> bool:
        """Return whether a window ended or something was decided in this epoch."""
        return bool(self.windows or self.notes or self.learned or self.profile)


def default_knobs(records: Iterable[KnobRecord]) -> Config | None:
    """Return the default knobs of a trial, also those that became available later; None if none were measured."""
    defaults: dict[str, Any] = {}
    for record in records:
        measured = (window.knobs for window in record.windows if window.phase is Phase.FOUND)
        defaults = {**next(measured, {}), **defaults, **record.defaults}
    return Config(defaults) if defaults else None


def knobs_in_use(records: Sequence[KnobRecord]) -> Config | None:
    """Return the knobs that a trial trained with at its end; None if none were settled."""
    in_use = next((record.in_use for record in reversed(records) if record.in_use is not None), None)
    return None if in_use is None else Config({**(default_knobs(records) or {}), **in_use})


def knob_gain(records: Sequence[KnobRecord]) -> tuple[StepWindow, StepWindow] | None:
    """Return the fastest windows with the default knobs and with those in use, from the latest comparison of the two.

    Only windows that were measured in turn are compared: training also becomes faster by itself, and other processes
    come and go. None if the knobs in use are the defaults, or were not compared with them.
    """
    default, in_use = default_knobs(records), knobs_in_use(records)
    if default is None or in_use is None or default == in_use:
        return None
    windows = [window for record in records for window in record.windows]
    runs = [list(run) for phase, run in groupby(windows, key=lambda window: window.phase) if phase is Phase.COMPARED]
    for run in reversed(runs):
        before, after = (_fastest_window(run, default, knobs) for knobs in (default, in_use))
        if before is not None and after is not None:
            return before, after
    return None


def _fastest_window(windows: Iterable[StepWindow], default: Config, knobs: Config) -> StepWindow | None:
    same = [window for window in windows if {**default, **window.knobs} == knobs]
    return min(same, key=lambda window: window.step_s, default=None)


def has_probed(records: Sequence[KnobRecord]) -> bool:
    """Return whether more steps would probe no more knobs: some are settled, or the job cannot be tuned."""
    return knobs_in_use(records) is not None or any(record.untunable for record in records)


def why_no_gain(records: Sequence[KnobRecord]) -> str:
    """Return why no gain of a trial's knobs is known, as a clause without its subject."""
    untunable = next((record.untunable for record in reversed(records) if record.untunable), "")
    if untunable:
        return untunable
    in_use = knobs_in_use(records)
    if in_use is not None:
        is_default = in_use == default_knobs(records)
        return "no other setting is faster" if is_default else "they were not compared with the defaults in this run"
    if any(window.phase is Phase.PROBED for record in records for window in record.windows):
        return "there were too few steps to finish probing"
    return "no similar job is known, or there were too few steps for probing"


def changed_knobs(before: Config | None, after: Config | None) -> Config:
    """Return the knobs of `after` whose values differ from those of `before`; none without either."""
    before, after = before or Config(), after or Config()
    return Config({name: value for name, value in after.items() if before.get(name) != value})
