"""The seam between a study and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from onefold.vocabulary.kernels import CompileCost, Operator, ScheduleCandidate, TuningRound
from onefold.vocabulary.knobs import Remembered, Steered
from onefold.vocabulary.records import Epoch, Rung, StudyState, Trial, TrialState
from onefold.vocabulary.retraining import MemoryLesson
from onefold.vocabulary.serving import Surface


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as the store knows it. `spec` is everything that decides what it does, as JSON values."""

    name: str
    spec: Mapping[str, Any]
    created: str  # UTC, ISO 8601
    state: StudyState = StudyState.RUNNING
    reason: str = ""  # why it ended
    elapsed_s: float = 0.0  # time spent running, over all sittings
    result: Mapping[str, Any] = field(default_factory=dict)  # what it handed over, once it has


@dataclass(frozen=True, slots=True)
class Submission:
    """A study's place in the queue. Times are seconds since 1970."""

    study: str
    submitted: float
    folder: str = ""  # that it was submitted from
    began: float | None = None
    ended: float | None = None

    @property
    def response_s(self) -> float | None:
        """From its submission to its end."""
        return None if self.ended is None else self.ended - self.submitted


@dataclass(frozen=True, slots=True)
class CompilationRecord:
    """A compilation as the store knows it, written anew after each round."""

    key: str
    created: str  # UTC, ISO 8601
    state: StudyState
    spec: Mapping[str, Any]  # the models, the device and the options, as JSON values
    rounds: tuple[TuningRound, ...] = ()
    elapsed_s: float = 0.0  # time spent compiling, over all sittings
    spent: CompileCost = field(default_factory=CompileCost)
    reason: str = ""  # why it ended


class Store(Protocol):
    """What happened, durable.

    When a writing method returns, what it wrote survives the death of this process and of the machine. Inside
    `with store.together():` the writes become durable together, at the end of the block, or not at all. Writing the
    same thing twice leaves one row: rungs are known by (study, decision), epochs by (study, trial, rung, number).
    A store is used by one thread; several processes may read while one writes. Trouble with the file or the disk is a
    StoreError that says what to do; an unknown study is StudyNotFound, with the nearest name.
    """

    def together(self) -> AbstractContextManager[None]:
        """Makes the writes of the block durable as one."""

    def create(self, study: StudyRecord) -> None:
        """Adds a study; raises StoreError when the name is taken."""

    def save_study(self, study: StudyRecord) -> None:
        """Replaces what is known of the study itself; its trials stay."""

    def study(self, name: str) -> StudyRecord:
        """The study of that name."""

    def studies(self) -> list[StudyRecord]:
        """All studies, newest first."""

    def save_trial(self, study: str, trial: Trial) -> None:
        """Adds or replaces a trial: its number, config, state, refusals and redraws; `save_rung` saves its rungs."""

    def mark_trials(self, study: str, states: Mapping[int, TrialState]) -> None:
        """Changes the states of these trials."""

    def save_rung(self, study: str, rung: Rung) -> None:
        """Adds or replaces a rung, known by its decision."""

    def save_epoch(self, study: str, epoch: Epoch) -> None:
        """Adds an epoch; one that is known already stays as it was."""

    def trials(self, study: str) -> list[Trial]:
        """All trials by number, each with its rungs in the order they were decided."""

    def epochs(self, study: str, trial: int | None = None) -> list[Epoch]:
        """The epochs of one trial or of all, by trial, rung and number."""

    def save_surface(self, key: str, surface: Surface) -> None:
        """Remembers what serving an architecture costs; studies share it."""

    def surface(self, key: str) -> Surface | None:
        """What is remembered under a key; None when nothing is."""

    def save_serving(self, study: str, trial: int, device: str, key: str, *, recalled: bool) -> None:
        """Notes which surface a trial's architecture has on a device, and whether it was known already."""

    def servings(self, study: str) -> dict[tuple[int, str], Surface]:
        """The surfaces of a study's trials, by trial and device."""

    def save_steered(self, study: str, steered: Steered) -> None:
        """Adds what turning knobs came to in an epoch; what is known already stays as it was."""

    def steered(self, study: str) -> list[Steered]:
        """What turning knobs came to, by trial, rung and epoch."""

    def remember(self, remembered: Remembered) -> None:
        """Remembers which knobs suit a job; studies share it."""

    def remembered(self) -> list[Remembered]:
        """All that is remembered of knobs."""

    def save_lesson(self, lesson: MemoryLesson) -> None:
        """Adds or replaces what a plan taught, known by machine, model and plan; retrainings share it."""

    def lessons(self, machine: str) -> list[MemoryLesson]:
        """What plans taught on a machine, oldest first; what was replaced counts as new."""

    def save_operator(self, operator: Operator, loops: str = "") -> None:
        """Adds or replaces an operator and its loops, known by its key; compilations share it."""

    def operators(self) -> dict[str, Operator]:
        """All operators, by key."""

    def loops(self, operator: str) -> str:
        """The loops that were saved with an operator; empty where there are none."""

    def save_candidates(self, candidates: Sequence[ScheduleCandidate]) -> None:
        """Adds or replaces candidates, known by their keys, all of them or none; compilations share them."""

    def candidates(self, operator: str | None = None, target: str | None = None) -> list[ScheduleCandidate]:
        """The candidates of an operator, for a target, or all; first saved first, a replaced one in its place."""

    def save_compilation(self, compilation: CompilationRecord) -> None:
        """Adds or replaces a compilation, known by its key."""

    def compilation(self, key: str) -> CompilationRecord | None:
        """The compilation of that key; None when there is none."""

    def compilations(self) -> list[CompilationRecord]:
        """All compilations, newest first."""

    def save_submission(self, submission: Submission) -> None:
        """Adds or replaces a study's place in the queue."""

    def submissions(self) -> list[Submission]:
        """The queue, first come first, with those that have been served."""

    def delete(self, study: str) -> None:
        """Forgets a study; surfaces stay, other studies may need them."""

    def close(self) -> None:
        """Lets go of the file; calling it twice is fine."""
