"""Costs of a compilation: by the fate of candidates, per millisecond saved, by operator."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from onefold.vocabulary.kernels import (
    CandidateFailure,
    CandidateHistory,
    CompileResult,
    OperatorState,
    ScheduleCandidate,
)


class Fate(Enum):
    """The classification of a measured candidate."""

    HOT = "hot"  # at or below the LOESS fit
    COLD = "cold"  # above the LOESS fit
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FateCost:
    """The cost of the candidates of one fate that this compilation measured itself."""

    fate: Fate
    candidates: int
    time_s: float  # of building and running them
    joules: float | None  # None if unknown for all of them
    time_share: float | None  # of all measured candidates; None if they took no time
    energy_share: float | None


def fates(history: CandidateHistory) -> list[Fate]:
    """Return the fate of each candidate."""
    cold = [*history.is_cold, *[False] * len(history.candidates)]  # without a fit, none is cold
    return [
        Fate.FAILED if has_failed(candidate) else Fate.COLD if is_cold else Fate.HOT
        for candidate, is_cold in zip(history.candidates, cold)
    ]


def has_failed(candidate: ScheduleCandidate) -> bool:
    """Return whether a candidate has no valid latency."""
    return candidate.failure is not None or candidate.latency_s is None


def fate_costs(histories: Iterable[CandidateHistory]) -> tuple[FateCost, ...]:
    """Return the cost of each fate, without recalled candidates."""
    measured = [
        pair for history in histories for pair in list(zip(fates(history), history.candidates))[history.recalled :]
    ]
    every_s = _time_s(candidate for _, candidate in measured)
    every_j = _joules(candidate for _, candidate in measured)
    costs = []
    for fate in Fate:
        members = [candidate for its, candidate in measured if its is fate]
        time_s, joules = _time_s(members), _joules(members)
        if not members and every_j is not None:
            joules = 0.0
        time_share = time_s / every_s if every_s > 0 else None
        energy_share = (joules or 0.0) / every_j if every_j else None
        costs.append(FateCost(fate, len(members), time_s, joules, time_share, energy_share))
    return tuple(costs)


def failures(histories: Iterable[CandidateHistory]) -> dict[str, int]:
    """Return the number of failures by kind, without recalled candidates."""
    measured = (candidate for history in histories for candidate in history.candidates[history.recalled :])
    counts = Counter(candidate.failure.value for candidate in measured if candidate.failure is not None)
    return {kind.value: counts[kind.value] for kind in CandidateFailure if counts[kind.value]}


def saved_s(compiled: CompileResult) -> float:
    """Return the latency saved from the first to the last round; 0 without rounds."""
    rounds = compiled.rounds
    saved = rounds[0].latency_s - rounds[-1].latency_s if rounds else 0.0
    return saved if math.isfinite(saved) else 0.0


def joules_per_ms_saved(compiled: CompileResult) -> float | None:
    """Return the energy per millisecond of latency saved; None if nothing was saved or the energy is unknown."""
    joules, saved = compiled.spent.energy.joules, saved_s(compiled)
    return None if joules is None or saved <= 0 else joules / (saved * 1e3)


def by_time(compiled: CompileResult) -> list[OperatorState]:
    """Return the operators after the last round, by descending share of the model's latency."""
    return sorted(compiled.rounds[-1].operators, key=lambda state: -state.time_s) if compiled.rounds else []


def share_of_model(compiled: CompileResult, time_s: float) -> float | None:
    """Return a time as a share of the model's last latency; None if that is unknown."""
    latency_s = compiled.rounds[-1].latency_s if compiled.rounds else 0.0
    return time_s / latency_s if math.isfinite(latency_s) and latency_s > 0 else None


def _time_s(candidates: Iterable[ScheduleCandidate]) -> float:
    return sum(candidate.build_s + candidate.run_s for candidate in candidates)


def _joules(candidates: Iterable[ScheduleCandidate]) -> float | None:
    known = [candidate.joules for candidate in candidates if candidate.joules is not None]
    return sum(known) if known else None
