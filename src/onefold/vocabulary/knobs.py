"""What is said about knobs: how a study wants them turned, what windows of steps showed, and what is remembered.

Of a job only counters and shares are kept, nothing of its data and nothing of its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

from onefold.vocabulary.errors import InputError, suggestion
from onefold.vocabulary.records import Config

Mode = Literal["off", "on", "probe", "recall"]
Aim = Literal["time", "energy"]
Probing = Literal["few", "grid", "halving"]
AS_PARAMETER = "knob_"  # what the names of knobs begin with when they are parameters of a space


@dataclass(frozen=True, slots=True)
class KnobWish:
    """How a study wants its knobs turned."""

    mode: Mode = "off"  # `on`: recall what a similar job showed, else probe; `probe`, `recall`: that alone
    aim: Aim = "time"
    probing: Probing = "few"
    similarity: str = "KMeans"  # by which clusterer of scikit-learn earlier jobs are grouped
    reduced: bool = False  # whether knobs may reduce the precision of arithmetic, where that does not raise the loss

    def check(self) -> None:
        """Tells the first mistake."""
        for name, given, known in (
            ("way with knobs", self.mode, get_args(Mode)),
            ("aim of the knobs", self.aim, get_args(Aim)),
            ("way of probing", self.probing, get_args(Probing)),
        ):
            if given not in known:
                raise InputError(f"the {name} {given!r} is not known{suggestion(given, known)}")


class Phase(Enum):
    """What a window of steps was for."""

    FOUND = "found"  # the knobs as they stood
    PROBED = "probed"  # a candidate
    SETTLED = "settled"  # the best of the candidates
    RECALLED = "recalled"  # known from a similar job


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Some steps of a trial with the same knobs, and what one of them cost."""

    phase: Phase
    knobs: Config
    steps: int
    step_s: float
    step_j: float | None  # None where no energy is known
    source: str = "unavailable"  # of the energy


@dataclass(frozen=True, slots=True)
class Settled:
    """The knobs that a trial was left with, for its rungs to come on the same kind of machine."""

    machine: str
    setting: Config
    phase: Phase


@dataclass(frozen=True, slots=True)
class Profile:
    """How a job uses the machine."""

    features: Mapping[str, float]
    made_of: tuple[str, ...]  # where they come from: `operators`, `process`, `software events`, `hardware events`


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was found out about a job, for similar ones on the same kind of machine."""

    machine: str
    aim: str
    reduced: bool
    profile: Profile
    knobs: Config
    found: float  # what a step cost with the knobs as they stood: seconds or joules, as the aim says
    reached: float  # and with the best ones

    @property
    def gain(self) -> float:
        """How many times cheaper a step became."""
        return self.found / self.reached if self.reached else 1.0


@dataclass(frozen=True, slots=True)
class Steered:
    """What turning knobs came to in one epoch of a trial."""

    trial: int
    rung: int
    epoch: int
    windows: tuple[StepWindow, ...] = ()
    profile: Profile | None = None  # where this epoch made one
    learned: Remembered | None = None  # where this epoch found something out
    notes: tuple[str, ...] = ()  # what was decided and why, and which knobs are not here
    missing: Mapping[str, str] = field(default_factory=dict)  # knobs that cannot be turned here, and why


def gained(steered: Iterable[Steered]) -> tuple[StepWindow, StepWindow] | None:
    """Of one trial: its best window with the knobs as they stood, and the middle one of those it was left with.

    The best before, since the first steps of any training are slow, and a gain must not count that.
    """
    windows = [window for each in steered for window in each.windows]
    found = next((window.knobs for window in windows if window.phase is Phase.FOUND), None)
    before = [w for w in windows if w.knobs == found and w.phase in (Phase.FOUND, Phase.PROBED)]
    left = [window for window in windows if window.phase in (Phase.SETTLED, Phase.RECALLED)]
    left = sorted((w for w in left if w.knobs == left[-1].knobs), key=lambda window: window.step_s)
    return (min(before, key=lambda window: window.step_s), left[len(left) // 2]) if before and left else None


def changed(before: StepWindow, after: StepWindow) -> Config:
    """The knobs that stand otherwise than before."""
    return Config({name: value for name, value in after.knobs.items() if before.knobs.get(name) != value})
