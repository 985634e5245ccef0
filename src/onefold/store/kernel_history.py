"""The store protocol of kernel compilation: operators, candidates and compilations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from onefold.vocabulary.kernels import CompileCost, Operator, ScheduleCandidate, TuningRound
from onefold.vocabulary.records import StudyState


@dataclass(frozen=True, slots=True)
class CompilationRecord:
    """A compilation, saved after each round."""

    key: str
    created: str  # UTC, ISO 8601
    state: StudyState
    spec: Mapping[str, Any]  # the models, the device and the options, as JSON values
    rounds: tuple[TuningRound, ...] = ()
    elapsed_s: float = 0.0  # run time, summed over all runs of the compilation
    spent: CompileCost = field(default_factory=CompileCost)
    reason: str = ""  # why it ended


class KernelHistory(Protocol):
    """Operators and their schedule candidates, shared by all compilations, and the compilations."""

    def save_operator(self, operator: Operator, loops: str = "") -> None:
        """Add or replace an operator, identified by its key, with its serialized loop nest."""

    def operators(self) -> dict[str, Operator]:
        """Return all operators by key."""

    def loops(self, operator: str) -> str:
        """Return the serialized loop nest of an operator, or an empty string."""

    def save_candidates(self, candidates: Sequence[ScheduleCandidate]) -> None:
        """Add or replace candidates, identified by their keys, all or none."""

    def candidates(self, operator: str | None = None, target: str | None = None) -> list[ScheduleCandidate]:
        """Return the candidates, of one operator or target if given, in the order they were first saved."""

    def save_compilation(self, compilation: CompilationRecord) -> None:
        """Add or replace a compilation, identified by its key."""

    def compilation(self, key: str) -> CompilationRecord | None:
        """Return the compilation with that key, or None."""

    def compilations(self) -> list[CompilationRecord]:
        """Return all compilations, newest first."""
