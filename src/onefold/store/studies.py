"""The store protocol of studies: their trials, rungs and epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from onefold.vocabulary.records import Epoch, Rung, StudyState, Trial, TrialState


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study without its trials. `spec` is everything that decides what the study does, as JSON values."""

    name: str
    spec: Mapping[str, Any]
    created: str  # UTC, ISO 8601
    state: StudyState = StudyState.RUNNING
    reason: str = ""  # why it ended
    elapsed_s: float = 0.0  # run time, summed over all runs of the study
    result: Mapping[str, Any] = field(default_factory=dict)  # what it handed over; empty before
    problem: str = ""  # in lists: why it cannot be read; then only the name and the time of creation are known


@dataclass(frozen=True, slots=True)
class EpochCount:
    """How many epochs a rung has, and the number of the last one."""

    epochs: int
    last: int


class StudyStore(Protocol):
    """Studies, trials, rungs and epochs.

    Saving a record twice leaves one: rungs are identified by (study, decision), epochs by (study, trial, rung, number).
    An unknown study raises StudyNotFound, which suggests the nearest name.
    """

    def create_study(self, study: StudyRecord) -> None:
        """Add a study; raise StoreError if the name is taken."""

    def save_study(self, study: StudyRecord) -> None:
        """Replace the record of an existing study; its trials stay."""

    def study(self, name: str) -> StudyRecord:
        """Return the study with that name."""

    def studies(self) -> list[StudyRecord]:
        """Return all studies, newest first, also those that cannot be read."""

    def delete_study(self, name: str) -> None:
        """Delete a study with all that belongs to it. Surfaces stay, since other studies may use them."""

    def save_trial(self, study: str, trial: Trial) -> None:
        """Add or replace a trial without its rungs, which `save_rung` saves."""

    def set_trial_states(self, study: str, states: Mapping[int, TrialState]) -> None:
        """Change the states of existing trials, all or none."""

    def save_rung(self, study: str, rung: Rung) -> None:
        """Add or replace a rung."""

    def save_epoch(self, study: str, epoch: Epoch) -> None:
        """Add an epoch; one that exists is left unchanged."""

    def trials(self, study: str) -> list[Trial]:
        """Return all trials by number, each with its rungs in the order they were decided."""

    def epochs(self, study: str, trial: int | None = None) -> list[Epoch]:
        """Return the epochs of one trial or of all, by trial, rung and number."""

    def epoch_counts(self, study: str) -> dict[tuple[int, int], EpochCount]:
        """Return the number of epochs by trial and rung, of rungs that have any; without reading the epochs."""
