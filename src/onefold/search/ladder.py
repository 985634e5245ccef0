"""Rungs and promotion: who starts, who goes on, who stops.

A ladder knows trials by number and results by rank; it knows neither configurations nor clocks. Every move is a pure
function of what it was told, in the order it was told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from onefold.vocabulary.errors import BudgetError, suggestion
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Grant, Metrics, TrialState


@dataclass(frozen=True, slots=True)
class Move:
    """One visit to be made: of a new trial, or of `trial` promoted to its next rung."""

    bracket: int
    rung: int
    level: int
    trial: int | None = None
    side_by_side: int | None = None  # how many visits can be under way together from here on, where that is known


class Pause(Enum):
    """Why there is no move."""

    WAIT = "results that are not there yet decide what comes next"
    END = "nothing is left to do"


class Ladder(Protocol):
    """Decides the next visit. `started` must follow each Move of a new trial, with the number it was given."""

    def move(self) -> Move | Pause: ...

    def started(self, trial: int, move: Move) -> None: ...

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        """What a visit showed; None when it failed."""

    def run_out(self) -> None:
        """There are no more configurations: go on with the trials that there are."""

    def states(self) -> dict[int, TrialState]:
        """Where each trial stands."""


@dataclass
class Bracket:
    """A group of trials that climb the same levels together."""

    size: int
    levels: tuple[int, ...]
    keep: int | None = None  # how many go on from a rung; the best 1/eta without it
    arms: tuple[tuple[int, ...], ...] = ()  # so many of each of these groups of trials, where there are any
    members: list[list[int]] = field(default_factory=list)  # per rung, the trials that visit it
    pending: list[list[int]] = field(default_factory=list)  # per rung, promoted but not yet moved


class SynchronousLadder:
    """Successive halving in one or more brackets: a rung is complete before its best go on.

    While a bracket waits, the next one of the same sitting starts, so that no worker idles. Covers no rungs at all
    (one level), halving (one bracket), Hyperband (several) and top-k (`keep`).
    """

    def __init__(self, sittings: Sequence[Sequence[Bracket]], eta: int, objective: Objective, slots: int = 1) -> None:
        self._sittings = sittings
        self._brackets = [bracket for sitting in sittings for bracket in sitting]
        self._eta = eta
        self._objective = objective
        self._slots = slots
        self._results: dict[tuple[int, int], Metrics | None] = {}  # by trial and rung
        for bracket in self._brackets:
            bracket.members = [[] for _ in bracket.levels]
            bracket.pending = [[] for _ in bracket.levels]

    def move(self) -> Move | Pause:
        first = 0
        for sitting in self._sittings:
            waiting = False
            for number, bracket in enumerate(sitting, start=first):
                found = self._move_in(number, bracket, alone=len(sitting) == 1)
                if isinstance(found, Move):
                    return found
                waiting = waiting or found is Pause.WAIT
            if waiting:
                return Pause.WAIT
            first += len(sitting)
        return Pause.END

    def _move_in(self, number: int, bracket: Bracket, *, alone: bool) -> Move | Pause:
        for rung, level in enumerate(bracket.levels):
            members = bracket.members[rung]
            if rung == 0 and len(members) < bracket.size:
                return Move(number, 0, level, side_by_side=bracket.size if alone else None)
            if bracket.pending[rung]:
                trial = bracket.pending[rung].pop(0)
                return Move(number, rung, level, trial, side_by_side=len(members) if alone else None)
            if any((trial, rung) not in self._results for trial in members):
                return Pause.WAIT
        return Pause.END

    def started(self, trial: int, move: Move) -> None:
        self._brackets[move.bracket].members[0].append(trial)

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        self._results[trial, rung] = metrics
        bracket = next(b for b in self._brackets if trial in b.members[0])
        if len(bracket.members[0]) == bracket.size:
            self._promote(bracket, rung)

    def _promote(self, bracket: Bracket, rung: int) -> None:
        members = bracket.members[rung]
        if rung + 1 >= len(bracket.levels) or bracket.members[rung + 1]:
            return
        if any((trial, rung) not in self._results for trial in members):
            return
        keep = bracket.keep or _best_share(len(members), self._eta, self._slots)
        arms = bracket.arms or (tuple(members),)
        best = [trial for arm in arms for trial in self._best(arm, rung, keep)]
        bracket.members[rung + 1] = list(dict.fromkeys(best))
        bracket.pending[rung + 1] = list(bracket.members[rung + 1])

    def _best(self, trials: Sequence[int], rung: int, keep: int) -> list[int]:
        able = [(trial, metrics) for trial in trials if (metrics := self._results.get((trial, rung))) is not None]
        order = self._objective.order([metrics for _, metrics in able])
        return [able[i][0] for i in order[:keep]]

    def run_out(self) -> None:
        for bracket in self._brackets:
            bracket.size = len(bracket.members[0])
            if bracket.size:
                self._promote(bracket, 0)

    def states(self) -> dict[int, TrialState]:
        found: dict[int, TrialState] = {}
        for bracket in self._brackets:
            for rung, members in enumerate(bracket.members):
                decided = rung + 1 < len(bracket.levels) and bool(bracket.members[rung + 1])
                for trial in members:
                    found[trial] = self._state(trial, rung, last=rung + 1 == len(bracket.levels), decided=decided)
        return found

    def _state(self, trial: int, rung: int, *, last: bool, decided: bool) -> TrialState:
        if (trial, rung) not in self._results:
            return TrialState.RUNNING
        if self._results[trial, rung] is None:
            return TrialState.FAILED
        if last:
            return TrialState.DONE
        return TrialState.STOPPED if decided else TrialState.WAITING


class AsynchronousLadder:
    """Asynchronous halving: whoever is among the best 1/eta of a rung so far goes on at once, nobody waits.

    When a sitting has no more trials to start, the best of each rung climb on until one has had the full budget.
    """

    def __init__(self, sittings: Sequence[int], levels: tuple[int, ...], eta: int, objective: Objective) -> None:
        self._sittings = list(sittings)
        self._levels = levels
        self._eta = eta
        self._objective = objective
        self._limit = self._sittings.pop(0)
        self._started = 0
        self._rungs: list[dict[int, Metrics | None]] = [{} for _ in levels]
        self._moved: list[set[int]] = [set() for _ in levels]  # trials promoted out of the rung
        self._running: dict[int, int] = {}  # trial -> rung

    def move(self) -> Move | Pause:
        for rung in range(len(self._levels) - 2, -1, -1):
            for trial in self._best(rung, at_least=0):
                return self._promotion(trial, rung)
        if self._started < self._limit:
            return Move(0, 0, self._levels[0])
        if self._running:
            return Pause.WAIT
        for rung in range(len(self._levels) - 2, -1, -1):
            # The sitting drains: every rung that had results sends at least its best one up.
            for trial in self._best(rung, at_least=1):
                return self._promotion(trial, rung)
        if self._sittings:
            self._limit += self._sittings.pop(0)
            return self.move()
        return Pause.END

    def _best(self, rung: int, at_least: int) -> list[int]:
        able = [(trial, metrics) for trial, metrics in self._rungs[rung].items() if metrics is not None]
        places = max(at_least, len(self._rungs[rung]) // self._eta)
        order = self._objective.order([metrics for _, metrics in able])
        return [able[i][0] for i in order[:places] if able[i][0] not in self._moved[rung]]

    def _promotion(self, trial: int, rung: int) -> Move:
        self._moved[rung].add(trial)
        self._running[trial] = rung + 1
        return Move(0, rung + 1, self._levels[rung + 1], trial)

    def started(self, trial: int, move: Move) -> None:
        self._started += 1
        self._running[trial] = move.rung

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        self._rungs[rung][trial] = metrics
        del self._running[trial]

    def run_out(self) -> None:
        self._limit = self._started
        self._sittings.clear()

    def states(self) -> dict[int, TrialState]:
        over = not self._running and self._started >= self._limit
        found: dict[int, TrialState] = {}
        for rung, results in enumerate(self._rungs):
            for trial, metrics in results.items():
                if metrics is None:
                    found[trial] = TrialState.FAILED
                elif rung + 1 == len(self._levels):
                    found[trial] = TrialState.DONE
                else:
                    found[trial] = TrialState.STOPPED if over else TrialState.WAITING
        return found | dict.fromkeys(self._running, TrialState.RUNNING)


LADDERS = ("none", "halving", "hyperband", "asha", "top-k")


def ladder(
    rungs: str,
    budget: Budget,
    objective: Objective,
    sittings: Sequence[int],
    *,
    top_k: int = 3,
    slots: int = 1,
    arms: Sequence[Sequence[int]] = (),
) -> Ladder:
    """The ladder of that name; each sitting is a number of trials, and begins when the one before has ended.

    `slots` is how many visits run side by side. With `arms`, groups of trials of the first sitting, the top k of each
    arm go on.
    """
    if arms and rungs != "top-k":
        raise BudgetError(f"the best of each arm go on where the rungs are top-k, but got {rungs!r}")
    if rungs == "asha":
        return AsynchronousLadder(sittings, _climb(budget, sittings[0]), budget.eta, objective)
    brackets = [_brackets(rungs, budget, n, top_k) for n in sittings]
    for bracket in brackets[0] if arms else ():
        bracket.arms = tuple(tuple(arm) for arm in arms)
    return SynchronousLadder(brackets, budget.eta, objective, slots)


def planned_work(
    rungs: str, budget: Budget, sittings: Sequence[int], *, top_k: int = 3, slots: int = 1, afresh: bool = False
) -> float:
    """About how much training a ladder will ask for, as `work_of` counts it.

    `afresh` says that every visit begins from nothing, as with a fresh budget.
    """
    kind = "halving" if rungs == "asha" else rungs
    work = 0.0
    for bracket in (bracket for trials in sittings for bracket in _brackets(kind, budget, trials, top_k)):
        members, before = bracket.size, None
        for visit, level in enumerate(bracket.levels, start=1):
            grant = budget.grant(level, visit)
            work += members * work_of(grant, before)
            before = None if budget.fresh or afresh else grant
            members = bracket.keep or _best_share(members, budget.eta, slots)
    return work


def work_of(grant: Grant, before: Grant | None = None) -> float:
    """How much training a visit may ask for that goes on from where the one granted `before` ended.

    In seconds, where seconds are granted; otherwise in passes over the whole data.
    """
    if grant.time_s is not None:
        return grant.time_s - (before.time_s or 0.0 if before is not None else 0.0)
    return (grant.epochs - (before.epochs if before is not None else 0)) * grant.data


def _best_share(members: int, eta: int, slots: int) -> int:
    """How many of a rung go on: the best 1/eta, made to fit the workers.

    More than the workers: less the few that would keep one of them busy and the others idle. Fewer: up to half of the
    rung, since workers that would idle give the next one a chance for nothing.
    """
    share = max(1, members // eta)
    return share - share % slots if share >= slots else max(share, min(slots, members // 2))


def _brackets(rungs: str, budget: Budget, trials: int, top_k: int) -> list[Bracket]:
    if rungs == "none":
        return [Bracket(trials, budget.levels(1))]
    if rungs == "halving":
        return [Bracket(trials, _climb(budget, trials))]
    if rungs == "hyperband":
        return _hyperband(budget, trials)
    if rungs == "top-k":
        if top_k < 1:
            raise BudgetError(f"top_k must be 1 or more, but got {top_k}")
        return [Bracket(trials, tuple(dict.fromkeys((1, budget.top_level))), keep=min(top_k, trials))]
    raise BudgetError(f"the rungs {rungs!r} are not known{suggestion(rungs, LADDERS)}")


def _climb(budget: Budget, trials: int) -> tuple[int, ...]:
    """As many levels as so few trials can fill when each rung keeps 1/eta."""
    return budget.levels(1 + math.floor(math.log(trials) / math.log(budget.eta) + 1e-9))


def _hyperband(budget: Budget, trials: int) -> list[Bracket]:
    """Brackets from the most careful (all levels, many trials) to none at all, round and round, `trials` in all."""
    top = len(budget.levels()) - 1
    brackets: list[Bracket] = []
    left = trials
    while left > 0:
        for halvings in range(top, -1, -1):
            size = min(left, math.ceil((top + 1) / (halvings + 1) * budget.eta**halvings))
            if size > 0:
                climbable = min(halvings + 1, len(_climb(budget, size)))
                brackets.append(Bracket(size, budget.levels(climbable)))
                left -= size
    return brackets
