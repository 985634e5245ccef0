"""Failed rungs that are run again, and how their trials catch up with the others.

A retry is a decision of its own: what followed from the failure stays as it was decided. A trial whose retry succeeds
is promoted, once nothing else is left to run, if it beats a trial of its bracket that was promoted from that rung.
"""

from __future__ import annotations

from collections import deque

from onefold.search.rung_scheduler import Idle, RungAssignment, RungScheduler
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Metrics, TrialState

RungKey = tuple[int, int]  # trial and rung


class RetryingScheduler:
    """A rung scheduler whose failed rungs can be run again. Implements `RungScheduler`."""

    def __init__(self, scheduler: RungScheduler, objective: Objective, top_level: int) -> None:
        self._scheduler = scheduler
        self._objective = objective
        self._top_level = top_level
        self._assignments: dict[RungKey, RungAssignment] = {}
        self._results: dict[RungKey, Metrics | None] = {}
        self._rungs: dict[int, int] = {}  # of the trials that are run again: the highest rung
        self._running: set[int] = set()  # those of them without a result
        self._late: set[RungKey] = set()  # rungs that only this class knows
        self._candidates: deque[RungKey] = deque()  # results that may be promoted

    def ask(self) -> RungAssignment | Idle:
        assignment = self._scheduler.ask()
        if isinstance(assignment, RungAssignment):
            if assignment.trial is not None:
                self._assignments[assignment.trial, assignment.rung] = assignment
            return assignment
        if assignment is Idle.WAIT or self._running:
            return Idle.WAIT
        while self._candidates:
            promotion = self._promotion(*self._candidates.popleft())
            if promotion is not None:
                return promotion
        return Idle.END

    def retry(self, trial: int, rung: int) -> None:
        """Expect one more result of a rung that has failed."""
        self._rungs[trial] = rung
        self._running.add(trial)

    def start(self, trial: int, assignment: RungAssignment) -> None:
        self._assignments[trial, assignment.rung] = assignment
        self._scheduler.start(trial, assignment)

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        key = trial, rung
        is_known = key in self._results or key in self._late
        self._results[key] = metrics
        if not is_known:
            self._scheduler.tell(trial, rung, metrics)
            return
        self._running.discard(trial)
        if metrics is not None and self._assignments[key].fork is None:  # forks are compared with forks alone
            self._candidates.append(key)

    def end_trials(self) -> None:
        self._scheduler.end_trials()

    def state(self, trial: int) -> TrialState:
        if trial not in self._rungs:
            return self._scheduler.state(trial)
        key = trial, self._rungs[trial]
        if trial in self._running:
            return TrialState.RUNNING
        if self._results[key] is None:
            return TrialState.FAILED
        if self._assignments[key].level >= self._top_level:
            return TrialState.DONE
        return TrialState.WAITING if key in self._candidates else TrialState.STOPPED

    def changed(self) -> set[int]:
        return self._scheduler.changed() | self._rungs.keys()

    def _promotion(self, trial: int, rung: int) -> RungAssignment | None:
        """Return the next rung of a trial if it beats one of its bracket that has been there."""
        bracket = self._assignments[trial, rung].bracket
        above = {
            other: assignment
            for (other, at), assignment in self._assignments.items()
            if at == rung + 1 and assignment.bracket == bracket and other != trial and assignment.fork is None
        }
        promoted = [metrics for other in above if (metrics := self._results.get((other, rung))) is not None]
        own = self._results[trial, rung]
        if own is None or not promoted or self._objective.order([*promoted, own])[-1] == len(promoted):
            return None
        level = next(iter(above.values())).level
        assignment = RungAssignment(bracket, rung + 1, level, trial)
        self._assignments[trial, rung + 1] = assignment
        self._late.add((trial, rung + 1))
        self.retry(trial, rung + 1)
        return assignment
