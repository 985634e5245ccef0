"""Successive halving and its relatives: which trial starts, which is promoted, which stops.

A scheduler knows trials by number and results by rank; it knows neither configurations nor clocks. Every assignment is
a pure function of the results, in the order of arrival.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import BudgetError, unknown
from onefold.vocabulary.forks import Fork
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Grant, Metrics, TrialState
from onefold.vocabulary.standings import standings


@dataclass(frozen=True, slots=True)
class RungAssignment:
    """A rung to run: the first one of a new trial, or the next one of `trial`, which is promoted."""

    bracket: int
    rung: int
    level: int
    trial: int | None = None
    side_by_side: int | None = None  # rungs that can run in parallel from here on, if known
    fork: Fork | None = None  # if it is the rung of a fork
    fork_epochs: int = 0  # epochs that the fork trains after those of its parent


class Idle(Enum):
    """Why there is no assignment."""

    WAIT = "the next assignment depends on results that are not there yet"
    END = "nothing is left to do"


class RungScheduler(Protocol):
    """Decide which rung runs next."""

    def ask(self) -> RungAssignment | Idle:
        """Return the next assignment. `start` must follow one of a new trial."""

    def start(self, trial: int, assignment: RungAssignment) -> None:
        """Give the new trial of an assignment its number."""

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        """Record the result of a rung; None if it failed."""

    def end_trials(self) -> None:
        """Start no more trials, since there are no more configurations; continue with the existing ones."""

    def state(self, trial: int) -> TrialState:
        """Return the state of a trial that has started."""

    def changed(self) -> set[int]:
        """Return the trials whose state may have changed since the last call."""


@dataclass
class Bracket:
    """A group of trials that go through the same levels together."""

    size: int
    levels: tuple[int, ...]
    keep: int | None = None  # trials promoted from a rung; None for the best 1/eta
    arms: tuple[tuple[int, ...], ...] = ()  # groups of trials; if any, `keep` of each are promoted
    pairs: tuple[tuple[tuple[int, int], ...], ...] = ()  # by arm: trials to compare with trials of the first arm
    members: list[list[int]] = field(default_factory=list)  # trials of each rung
    missing: list[int] = field(default_factory=list)  # members of each rung without a result
    pending: list[deque[int]] = field(default_factory=list)  # trials of each rung that are promoted but not assigned


class SynchronousScheduler:
    """Successive halving in one or more brackets: a rung is complete before its best trials are promoted.

    While a bracket waits, the next one of the same batch starts, so that no worker idles. If running rungs are lent
    the cores of idle workers, it does so only when more than half of the workers would idle: the first bracket has most
    trials and most often the winner, and twice the cores still make its rungs faster. Covers no rungs at all (one
    level), halving (one bracket), Hyperband (several) and top-k (`keep`).
    """

    def __init__(
        self,
        batches: Sequence[Sequence[Bracket]],
        eta: int,
        objective: Objective,
        slots: int = 1,
        *,
        lends_cores: bool = False,
    ) -> None:
        self._brackets = [bracket for batch in batches for bracket in batch]
        numbers = iter(range(len(self._brackets)))
        self._open = deque([next(numbers) for _ in batch] for batch in batches)  # brackets without an end, by batch
        self._eta = eta
        self._objective = objective
        self._slots = slots
        self._lends_cores = lends_cores
        self._results: dict[tuple[int, int], Metrics | None] = {}  # by trial and rung
        self._places: dict[int, tuple[Bracket, int]] = {}  # bracket and highest rung of each trial
        self._changed: set[int] = set()
        for bracket in self._brackets:
            bracket.members = [[] for _ in bracket.levels]
            bracket.missing = [0 for _ in bracket.levels]
            bracket.pending = [deque() for _ in bracket.levels]

    def ask(self) -> RungAssignment | Idle:
        while self._open:
            batch = self._open[0]
            for number in list(batch):
                assignment = self._ask_bracket(number)
                if isinstance(assignment, RungAssignment):
                    return assignment
                if assignment is Idle.END:
                    batch.remove(number)
                elif self._lends_cores and max(self._brackets[number].missing) >= self._slots - 1:
                    return Idle.WAIT
            if batch:
                return Idle.WAIT
            self._open.popleft()
        return Idle.END

    def _ask_bracket(self, number: int) -> RungAssignment | Idle:
        bracket = self._brackets[number]
        for rung, level in enumerate(bracket.levels):
            members = bracket.members[rung]
            if rung == 0 and len(members) < bracket.size:
                return RungAssignment(number, 0, level, side_by_side=self._side_by_side(number, bracket.size))
            if bracket.pending[rung]:
                trial = bracket.pending[rung].popleft()
                return RungAssignment(number, rung, level, trial, side_by_side=self._side_by_side(number, len(members)))
            if bracket.missing[rung]:
                return Idle.WAIT
        return Idle.END

    def _side_by_side(self, number: int, members: int) -> int:
        """Return how many rungs can run in parallel from here on: of this bracket, and of others of its batch."""
        others = (self._brackets[other] for other in self._open[0] if other != number)
        return members + sum(max(other.size - len(other.members[0]), *other.missing) for other in others)

    def start(self, trial: int, assignment: RungAssignment) -> None:
        self._join(trial, self._brackets[assignment.bracket], 0)

    def _join(self, trial: int, bracket: Bracket, rung: int) -> None:
        bracket.members[rung].append(trial)
        bracket.missing[rung] += 1
        self._places[trial] = (bracket, rung)
        self._changed.add(trial)

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        bracket, _ = self._places[trial]
        self._results[trial, rung] = metrics
        bracket.missing[rung] -= 1
        self._changed.add(trial)
        if len(bracket.members[0]) == bracket.size:
            self._promote(bracket, rung)

    def _promote(self, bracket: Bracket, rung: int) -> None:
        members = bracket.members[rung]
        if rung + 1 >= len(bracket.levels) or bracket.members[rung + 1] or bracket.missing[rung]:
            return
        keep = bracket.keep or _promotions(len(members), self._eta, self._slots)
        arms = bracket.arms or (tuple(members),)
        promoted = [trial for arm in arms for trial in self._best(arm, rung, keep)]
        for pairs in bracket.pairs:
            promoted += self._best_pairs(pairs, rung, keep)
        for trial in dict.fromkeys(promoted):
            self._join(trial, bracket, rung + 1)
            bracket.pending[rung + 1].append(trial)
        self._changed.update(members)

    def _best(self, trials: Sequence[int], rung: int, keep: int) -> list[int]:
        candidates = [(trial, metrics) for trial in trials if (metrics := self._results.get((trial, rung))) is not None]
        order = self._objective.order([metrics for _, metrics in candidates])
        return [candidates[i][0] for i in order[:keep]]

    def _best_pairs(self, pairs: Sequence[tuple[int, int]], rung: int, keep: int) -> list[int]:
        """Return the trials of the pairs with the best trials on either side, so that neither side has an advantage."""
        known = [pair for pair in pairs if all(self._results.get((trial, rung)) is not None for trial in pair)]
        sides = [self._best([pair[side] for pair in known], rung, keep) for side in (0, 1)]
        return [trial for pair in known if pair[0] in sides[0] or pair[1] in sides[1] for trial in pair]

    def end_trials(self) -> None:
        for bracket in self._brackets:
            bracket.size = len(bracket.members[0])
            if bracket.size:
                self._promote(bracket, 0)

    def state(self, trial: int) -> TrialState:
        bracket, rung = self._places[trial]
        if (trial, rung) not in self._results:
            return TrialState.RUNNING
        if self._results[trial, rung] is None:
            return TrialState.FAILED
        if rung + 1 == len(bracket.levels):
            return TrialState.DONE
        return TrialState.STOPPED if bracket.members[rung + 1] else TrialState.WAITING

    def changed(self) -> set[int]:
        changed, self._changed = self._changed, set()
        return changed


class AsynchronousScheduler:
    """Asynchronous successive halving (ASHA): a trial among the best 1/eta of its rung so far is promoted at once.

    When a batch has no more trials to start, the best of each rung are promoted until one has had the full budget.
    """

    def __init__(self, batches: Sequence[int], levels: tuple[int, ...], eta: int, objective: Objective) -> None:
        self._batches = list(batches)
        self._levels = levels
        self._eta = eta
        self._limit = self._batches.pop(0)
        self._trials: list[int] = []
        self._arrivals: list[list[int]] = [[] for _ in levels]  # trials that ended each rung, in order of arrival
        self._standings = [standings(objective) for _ in levels]  # of each rung, by arrival
        self._ends: dict[int, TrialState] = {}  # of trials that cannot be promoted: failed or done
        self._running: set[int] = set()
        self._changed: set[int] = set()
        self._was_over = False

    def ask(self) -> RungAssignment | Idle:
        for rung in range(len(self._levels) - 2, -1, -1):
            if (assignment := self._promotion(rung, at_least=0)) is not None:
                return assignment
        if len(self._trials) < self._limit:
            return RungAssignment(0, 0, self._levels[0])
        if self._running:
            return Idle.WAIT
        for rung in range(len(self._levels) - 2, -1, -1):
            # The batch drains: every rung that has results promotes at least its best trial.
            if (assignment := self._promotion(rung, at_least=1)) is not None:
                return assignment
        if self._batches:
            self._limit += self._batches.pop(0)
            return self.ask()
        return Idle.END

    def _promotion(self, rung: int, at_least: int) -> RungAssignment | None:
        arrivals, results = self._arrivals[rung], self._standings[rung]
        arrival = results.candidate(max(at_least, len(arrivals) // self._eta))
        if arrival is None:
            return None
        results.retire(arrival)
        self._run(arrivals[arrival])
        return RungAssignment(0, rung + 1, self._levels[rung + 1], arrivals[arrival])

    def _run(self, trial: int) -> None:
        self._running.add(trial)
        self._changed.add(trial)

    def start(self, trial: int, assignment: RungAssignment) -> None:  # noqa: ARG002 - all begin at the lowest rung
        self._trials.append(trial)
        self._run(trial)

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        self._arrivals[rung].append(trial)
        if metrics is None:
            self._ends[trial] = TrialState.FAILED
        else:
            self._standings[rung].put(len(self._arrivals[rung]) - 1, metrics)
            if rung + 1 == len(self._levels):
                self._ends[trial] = TrialState.DONE
        self._running.remove(trial)
        self._changed.add(trial)

    def end_trials(self) -> None:
        self._limit = len(self._trials)
        self._batches.clear()

    def state(self, trial: int) -> TrialState:
        if trial in self._running:
            return TrialState.RUNNING
        return self._ends.get(trial, TrialState.STOPPED if self._is_over else TrialState.WAITING)

    def changed(self) -> set[int]:
        changed, self._changed = self._changed, set()
        if self._is_over is not self._was_over:  # those that waited are stopped, or wait again
            self._was_over = self._is_over
            changed = set(self._trials)
        return changed

    @property
    def _is_over(self) -> bool:
        return not self._running and len(self._trials) >= self._limit


RUNG_SCHEDULES = ("none", "halving", "hyperband", "asha", "top-k")


def rung_scheduler(
    rungs: str,
    budget: Budget,
    objective: Objective,
    trial_batches: Sequence[int],
    *,
    top_k: int = 3,
    slots: int = 1,
    arms: Sequence[Sequence[int]] = (),
    pairs: Sequence[Sequence[tuple[int, int]]] = (),
    lends_cores: bool = False,
) -> RungScheduler:
    """Return the scheduler of that name.

    Args:
        rungs: One of RUNG_SCHEDULES.
        budget: Gives the levels and eta.
        objective: Ranks the results of a rung.
        trial_batches: Trials of each batch; a batch begins when the one before has ended.
        top_k: Trials that "top-k" promotes.
        slots: Rungs that run in parallel.
        arms: Groups of trials of the first batch; the top k of each are promoted.
        pairs: By arm, pairs of its trials and trials of the first arm; the pairs with the top k trials of either side
            are promoted too, so that both trials can be compared.
        lends_cores: Whether running rungs are lent the cores of idle workers.

    Raises:
        BudgetError: An unknown name, or arms without "top-k".
    """
    if arms and rungs != "top-k":
        raise BudgetError(f"arms need rungs='top-k', which promotes the best of each, but got {rungs!r}")
    if rungs == "asha":
        return AsynchronousScheduler(trial_batches, _halving_levels(budget, trial_batches[0]), budget.eta, objective)
    brackets = [_brackets(rungs, budget, trials, top_k) for trials in trial_batches]
    for bracket in brackets[0] if arms else ():
        bracket.arms = tuple(tuple(arm) for arm in arms)
        bracket.pairs = tuple(tuple(group) for group in pairs)
    return SynchronousScheduler(brackets, budget.eta, objective, slots, lends_cores=lends_cores)


def planned_work(
    rungs: str,
    budget: Budget,
    trial_batches: Sequence[int],
    *,
    top_k: int = 3,
    slots: int = 1,
    from_scratch: bool = False,
) -> float:
    """Estimate the training that a schedule asks for, in the units of `work_of`.

    With `from_scratch` every rung trains from scratch, as with a fresh budget.
    """
    kind = "halving" if rungs == "asha" else rungs
    work = 0.0
    for bracket in (bracket for trials in trial_batches for bracket in _brackets(kind, budget, trials, top_k)):
        members, before = bracket.size, None
        for rung, level in enumerate(bracket.levels, start=1):
            grant = budget.grant(level, rung)
            work += members * work_of(grant, before)
            before = None if budget.fresh or from_scratch else grant
            members = bracket.keep or _promotions(members, budget.eta, slots)
    return work


def work_of(grant: Grant, before: Grant | None = None) -> float:
    """Return how much training a grant allows after the one `before`.

    The unit is seconds if the grant is in seconds, and otherwise passes over the whole data.
    """
    if grant.time_s is not None:
        return grant.time_s - (before.time_s or 0.0 if before is not None else 0.0)
    return (grant.epochs - (before.epochs if before is not None else 0)) * grant.data


def _promotions(members: int, eta: int, slots: int) -> int:
    """Return how many trials of a rung are promoted: the best 1/eta, rounded to fit the workers.

    More than the workers are rounded down to a multiple, so that none idles while the last ones run. Fewer are filled
    up to half of the rung, since workers that would idle try the next trial for free.
    """
    share = max(1, members // eta)
    return share - share % slots if share >= slots else max(share, min(slots, members // 2))


def _brackets(rungs: str, budget: Budget, trials: int, top_k: int) -> list[Bracket]:
    if rungs == "none":
        return [Bracket(trials, budget.levels(1))]
    if rungs == "halving":
        return [Bracket(trials, _halving_levels(budget, trials))]
    if rungs == "hyperband":
        return _hyperband(budget, trials)
    if rungs == "top-k":
        if top_k < 1:
            raise BudgetError(f"top_k must be 1 or more, but got {top_k}")
        return [Bracket(trials, tuple(dict.fromkeys((1, budget.top_level))), keep=min(top_k, trials))]
    raise BudgetError(unknown("rungs", rungs, RUNG_SCHEDULES))


def _halving_levels(budget: Budget, trials: int) -> tuple[int, ...]:
    """Return as many levels as `trials` can fill when each rung promotes 1/eta."""
    return budget.levels(1 + math.floor(math.log(trials) / math.log(budget.eta) + 1e-9))


def _hyperband(budget: Budget, trials: int) -> list[Bracket]:
    """Return brackets from the most aggressive (all levels, many trials) to plain training, repeated up to `trials`."""
    top = len(budget.levels()) - 1
    brackets: list[Bracket] = []
    left = trials
    while left > 0:
        for halvings in range(top, -1, -1):
            size = min(left, math.ceil((top + 1) / (halvings + 1) * budget.eta**halvings))
            if size > 0:
                reachable = min(halvings + 1, len(_halving_levels(budget, size)))
                brackets.append(Bracket(size, budget.levels(reachable)))
                left -= size
    return brackets
