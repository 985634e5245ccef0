"""Train dense, fork late: compressed variants of trials as rungs of their own.

Dense trials are promoted among themselves, as without forks. The last checkpoint of every trial is scored with the
recipes that need no training: at once after the full budget, the others at the end of their batch. With the other
recipes, trials that had the full budget are forked, the best ones first, while forks have had no more than their
share of the training. The best 1/eta of the forks of a recipe so far are promoted: they start again from their parents,
with PROMOTED times the epochs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from onefold.search.rung_scheduler import Idle, RungAssignment, RungScheduler, work_of
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.forks import Fork
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Metrics, TrialState
from onefold.vocabulary.standings import Standings, standings
from onefold.vocabulary.variants import Recipe

PROMOTED = 2


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """Which recipes are scored, which are trained and for how many epochs, and the share of the training for them."""

    scored: tuple[Recipe, ...] = ()
    trained: tuple[tuple[Recipe, int], ...] = ()
    share: float = 0.0


@dataclass
class _RecipeForks:
    """The forks of one recipe, of which only those of trained recipes are promoted."""

    recipe: Recipe
    epochs: int
    standings: Standings  # of the first rung, by trial
    trials: dict[int, int] = field(default_factory=dict)  # by parent
    has_failed: bool = False  # without a single success: the network does not support the recipe


class ForkingScheduler:
    """A rung scheduler that adds forks to another one. Implements `RungScheduler`.

    A batch ends with its forks, so that an extended study decides as before until the end of the last one.
    """

    def __init__(
        self,
        scheduler: RungScheduler,
        plan: ForkPlan,
        budget: Budget,
        objective: Objective,
        trial_batches: Sequence[int],
    ) -> None:
        self._scheduler = scheduler
        self._ends = deque(accumulate(trial_batches))  # dense trials at the end of each batch to come
        self._dense_trials = 0
        self._share = plan.share
        self._budget = budget
        self._objective = objective
        self._scored = [_RecipeForks(recipe, 0, standings(objective)) for recipe in plan.scored]
        self._trained = [_RecipeForks(recipe, epochs, standings(objective)) for recipe, epochs in plan.trained]
        self._dense: dict[tuple[int, int], RungAssignment] = {}  # by trial and rung
        self._forks: dict[int, tuple[_RecipeForks, RungAssignment]] = {}  # by trial: the latest rung
        self._unscored: dict[int, RungAssignment] = {}  # by dense trial: the latest rung
        self._to_score: deque[tuple[_RecipeForks, int, RungAssignment]] = deque()  # with the parent
        self._parents: dict[int, Metrics] = {}  # trials that had the full budget
        self._best_parents: list[int] | None = []  # None if they have to be ordered again
        self._running: set[int] = set()  # forks
        self._failed: set[int] = set()
        self._changed: set[int] = set()
        self._dense_work = self._fork_work = 0.0  # epochs that were assigned

    def ask(self) -> RungAssignment | Idle:
        fork = self._next_scored() or self._next_trained()
        if fork is not None:
            return fork
        assignment = self._scheduler.ask()
        if isinstance(assignment, RungAssignment) and assignment.trial is not None:
            self._add_dense(assignment.trial, assignment)
            return assignment
        if assignment is Idle.WAIT or (assignment is not Idle.END and self._dense_trials < self._ends[0]):
            return assignment
        if self._unscored:  # the batch ends
            for trial in sorted(self._unscored):
                self._score(trial)
            return self.ask()
        return Idle.WAIT if self._running else assignment

    def start(self, trial: int, assignment: RungAssignment) -> None:
        if assignment.fork is None:
            self._scheduler.start(trial, assignment)
            self._add_dense(trial, assignment)
            if self._dense_trials == self._ends[0]:
                self._ends.popleft()
            self._dense_trials += 1
            return
        recipe = next(forks for forks in (*self._scored, *self._trained) if forks.recipe == assignment.fork.recipe)
        recipe.trials[assignment.fork.parent] = trial
        self._run(trial, recipe, assignment)

    def tell(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        if trial in self._forks:
            self._tell_fork(trial, rung, metrics)
            return
        self._scheduler.tell(trial, rung, metrics)
        if metrics is None:
            return
        self._unscored[trial] = self._dense[trial, rung]
        if self._unscored[trial].level >= self._budget.top_level:
            self._score(trial)
            self._parents[trial] = metrics
            self._best_parents = None

    def end_trials(self) -> None:
        self._scheduler.end_trials()

    def state(self, trial: int) -> TrialState:
        if trial not in self._forks:
            return self._scheduler.state(trial)
        if trial in self._running:
            return TrialState.RUNNING
        if trial in self._failed:
            return TrialState.FAILED
        _, assignment = self._forks[trial]
        if assignment.level >= self._budget.top_level or assignment.fork is None:
            return TrialState.DONE
        parent = self._scheduler.state(assignment.fork.parent)
        return TrialState.WAITING if parent in (TrialState.RUNNING, TrialState.WAITING) else TrialState.STOPPED

    def changed(self) -> set[int]:
        dense = self._scheduler.changed()
        forks = {recipe.trials[parent] for recipe in self._scored for parent in dense & recipe.trials.keys()}
        changed, self._changed = self._changed | dense | forks, set()
        return changed

    def _add_dense(self, trial: int, assignment: RungAssignment) -> None:
        before = self._dense.get((trial, assignment.rung - 1))
        self._dense[trial, assignment.rung] = assignment
        grant = self._budget.grant(assignment.level, assignment.rung + 1)
        is_continued = before is not None and not grant.fresh
        earlier = self._budget.grant(before.level, before.rung + 1) if before is not None and is_continued else None
        self._dense_work += work_of(grant, earlier)

    def _run(self, trial: int, recipe: _RecipeForks, assignment: RungAssignment) -> RungAssignment:
        self._fork_work += assignment.fork_epochs
        self._forks[trial] = recipe, assignment
        self._running.add(trial)
        self._changed.add(trial)
        return assignment

    def _tell_fork(self, trial: int, rung: int, metrics: Metrics | None) -> None:
        recipe, _ = self._forks[trial]
        self._running.discard(trial)
        self._changed.add(trial)
        if metrics is None:
            self._failed.add(trial)
            recipe.has_failed = recipe.has_failed or not len(recipe.standings)
        elif rung == 0:
            recipe.standings.put(trial, metrics)

    def _score(self, trial: int) -> None:
        """Have the latest checkpoint of a dense trial scored with all recipes that need no training."""
        assignment = self._unscored.pop(trial)
        self._to_score.extend((recipe, trial, assignment) for recipe in self._scored)

    def _next_scored(self) -> RungAssignment | None:
        """Return the next checkpoint to score with a recipe; the rungs of one fork follow each other."""
        for at, (recipe, parent, checkpoint) in enumerate(self._to_score):
            trial = recipe.trials.get(parent)
            if trial in self._running:
                continue
            del self._to_score[at]
            if trial in self._failed or recipe.has_failed:
                return self._next_scored()
            fork = RungAssignment(checkpoint.bracket, 0, checkpoint.level, fork=Fork(parent, recipe.recipe))
            if trial is None:
                return fork
            _, before = self._forks[trial]
            return self._run(trial, recipe, replace(fork, rung=before.rung + 1, trial=trial))
        return None

    def _next_trained(self) -> RungAssignment | None:
        """Return the next fork to train, if it fits into the share."""
        for recipe in self._trained:
            trial = recipe.standings.candidate(len(recipe.standings) // self._budget.eta)
            if trial is not None:
                _, first = self._forks[trial]
                promoted = replace(first, rung=1, trial=trial, fork_epochs=PROMOTED * recipe.epochs)
                if not self._fits(promoted):
                    return None
                recipe.standings.retire(trial)
                return self._run(trial, recipe, promoted)
        for parent in self._ordered_parents():
            for recipe in self._trained:
                if parent not in recipe.trials and not recipe.has_failed:
                    fork = RungAssignment(
                        bracket=0,
                        rung=0,
                        level=self._budget.top_level,
                        fork=Fork(parent, recipe.recipe),
                        fork_epochs=recipe.epochs,
                    )
                    return fork if self._fits(fork) else None
        return None

    def _fits(self, fork: RungAssignment) -> bool:
        work = self._fork_work + fork.fork_epochs
        return work <= self._share * (work + self._dense_work)

    def _ordered_parents(self) -> list[int]:
        """Return the trials that can be forked, best first."""
        if self._best_parents is None:
            parents = list(self._parents)
            self._best_parents = [parents[at] for at in self._objective.order([*self._parents.values()])]
        return self._best_parents
