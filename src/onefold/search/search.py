"""The search: an algorithm that proposes, a scheduler that promotes, and one rule that makes both deterministic.

    search = Search(space, objective=Objective(minimize="loss"), budget=Budget(trials=20))
    while (decision := search.ask()) is not None:
        search.tell(decision.number, {"loss": f(decision.config)})

**The rule.** Results are learned one by one in a planned order (`result_order.py`), however early others arrive. A
decision is made when fewer than `window` results are pending; if the scheduler needs more of them, it waits for the
next in that order. So decisions depend on the seed and on the results, never on which worker was faster, and a resumed
study decides as an uninterrupted one. The window is how many rungs may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from onefold.search.algorithms import create_searcher
from onefold.search.forking import ForkingScheduler, ForkPlan
from onefold.search.result_order import ResultOrder
from onefold.search.retries import RetryingScheduler
from onefold.search.rung_scheduler import Idle, RungAssignment, RungScheduler, rung_scheduler, work_of
from onefold.search.searcher import Observation, SpaceExhausted
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import BudgetError, SpaceError
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config, Grant, Metrics, Refusal, TrialState
from onefold.vocabulary.space import Space
from onefold.vocabulary.standings import SettledObjective
from onefold.vocabulary.workload import reason_against

Algorithm = str | Mapping[str, str]
ResultsBy = Literal["number", "work"]  # results are learned as if rungs took equally long, or as long as their work
MAX_REFUSALS = 200
MAX_REPEATS = 50


@dataclass(frozen=True, slots=True)
class Decision:
    """A rung to run: of trial `trial` with `config`, within `grant`."""

    number: int
    trial: int
    config: Config
    bracket: int
    rung: int
    grant: Grant
    is_new: bool
    side_by_side: int | None = None
    refusals: tuple[Refusal, ...] = ()
    redraws: int = 0  # earlier draws of this trial that were refused or known


class Search:
    """Ask for the next rung, tell its result. Up to `window` rungs may run at the same time."""

    def __init__(
        self,
        space: Space,
        *,
        objective: Objective,
        budget: Budget | None = None,
        algorithm: Algorithm = "tpe",
        rungs: str = "halving",
        top_k: int = 3,
        seed: int = 0,
        window: int = 1,
        slots: int = 1,
        results_by: ResultsBy = "work",
        from_scratch: bool = False,
        check: Callable[[Config], None] = lambda config: None,  # noqa: ARG005
        trial_batches: Sequence[int] = (),
        warm_start: Sequence[Observation] = (),
        first: Sequence[Config] = (),
        arms: Sequence[Sequence[int]] = (),
        pairs: Sequence[Sequence[tuple[int, int]]] = (),
        forks: ForkPlan | None = None,
        lends_cores: bool = False,
    ) -> None:
        if not len(space):
            raise SpaceError("the space is empty: give it at least one Float, Int or Choice")
        if window < 1:
            raise BudgetError(f"window must be 1 or more, but got {window}")
        self.space = space
        self.objective = objective
        self.budget = budget or Budget()
        self._window = window
        self._check = check
        self._searcher = create_searcher(algorithm, space, seed, len(objective.goals))
        batches = tuple(trial_batches) or (self.budget.trials,)
        scheduler: RungScheduler = rung_scheduler(
            rungs, self.budget, objective, batches,
            top_k=top_k, slots=slots, arms=arms, pairs=pairs, lends_cores=lends_cores,
        )  # fmt: skip
        if forks is not None:
            scheduler = ForkingScheduler(scheduler, forks, self.budget, objective, batches)
        self._scheduler = RetryingScheduler(scheduler, objective, self.budget.top_level)
        self._decisions: list[Decision] = []
        self._results: dict[int, Metrics | None] = {}
        self._results_by = results_by
        self._from_scratch = from_scratch or self.budget.fresh
        self._pending = ResultOrder(slots)  # what the algorithm and the scheduler have not learned
        self._configs: list[Config] = []  # by trial
        self._draws: dict[int, int] = {}  # by dense trial: how many were drawn before it
        self._grants: dict[int, dict[int, Grant]] = {}  # by trial and level
        self._observations: dict[int, list[tuple[Observation, Metrics]]] = {}  # by level
        self._level_objectives: dict[int, SettledObjective] = {}  # by level, relative to the best result so far
        self._rungs: dict[int, int] = {}
        self._known: set[str] = set()
        self._first = list(first)  # configurations to try before any is proposed
        self._over = False
        self.is_exhausted = False  # whether the space ran out of configurations before the trials did
        self._warm_start(warm_start)

    @property
    def is_finished(self) -> bool:
        """Return whether all rungs are decided and all results told."""
        return self._over and len(self._results) == len(self._decisions)

    def changed_states(self) -> dict[int, TrialState]:
        """Return the state of each trial whose state may have changed since the last call."""
        return {trial: self._scheduler.state(trial) for trial in sorted(self._scheduler.changed())}

    def ask(self, past: Decision | None = None) -> Decision | None:
        """Return the next rung to run; None if results must be told first, or if the search is over.

        `past` is what an earlier process decided at this point; it is taken instead of a new draw.
        """
        number = len(self._decisions)
        while len(self._pending) >= self._window:
            if not self._learn_next():
                return None
        while True:
            assignment = self._scheduler.ask()
            if assignment is Idle.END:
                self._over = True
                return None
            if assignment is Idle.WAIT:
                if not self._learn_next():
                    return None
                continue
            assert isinstance(assignment, RungAssignment)
            try:
                decision = self._decide(number, assignment, past)
            except SpaceExhausted:
                self.is_exhausted = True
                self._scheduler.end_trials()
                continue
            self._add(decision)
            return decision

    def retry(self, number: int) -> Decision:
        """Return a new decision: the failed rung of decision `number` again.

        It depends on the user alone, so it may be requested at any time. What was decided after the failure
        stays; if the rung succeeds now, its trial is promoted after all others if it is better than one of those that
        were.
        """
        failed = self._decisions[number]
        decision = replace(failed, number=len(self._decisions), is_new=False, refusals=(), redraws=0)
        self._add(decision)
        self._scheduler.retry(failed.trial, failed.rung)
        self._over = False
        return decision

    def tell(self, number: int, metrics: Metrics | None) -> None:
        """Record the result of decision `number`; None if it failed. Only the first call counts."""
        if not 0 <= number < len(self._decisions):
            raise BudgetError(f"there is no decision {number}, only {len(self._decisions)} so far")
        if metrics is not None:
            self.objective.check(metrics)
        self._results.setdefault(number, metrics)

    def _add(self, decision: Decision) -> None:
        self._decisions.append(decision)
        self._pending.add(decision.number, self._work(decision) if self._results_by == "work" else 1.0)

    def _work(self, decision: Decision) -> float:
        """Return the work of a rung after that of its trial at lower levels, or after that of a fork's parent."""
        fork, level = fork_of(decision.config), decision.grant.level
        if fork is not None:
            return work_of(decision.grant, self._grants[fork.parent][level])
        lower = [] if self._from_scratch else [known for known in self._grants[decision.trial] if known < level]
        return work_of(decision.grant, self._grants[decision.trial][max(lower)] if lower else None)

    def _learn_next(self) -> bool:
        """Learn the result that comes next; return False if it has not arrived."""
        number = self._pending.next
        if number is None or number not in self._results:
            return False
        self._pending.learn_next()
        decision, metrics = self._decisions[number], self._results[number]
        self._scheduler.tell(decision.trial, decision.rung, metrics)
        self._tell_searcher(decision, metrics)
        return True

    def _tell_searcher(self, decision: Decision, metrics: Metrics | None) -> None:
        if decision.trial not in self._draws:
            return  # a fork
        level = decision.grant.level
        seen = Observation(self._draws[decision.trial], level, decision.config, None)
        if metrics is None:
            self._searcher.tell(seen)
            return
        objective = self._level_objectives.setdefault(level, SettledObjective(self.objective))
        observations = self._observations.setdefault(level, [])
        observations.append((replace(seen, losses=self.objective.losses(metrics)), metrics))
        outdated = observations if objective.add(metrics) else observations[-1:]  # a new best changes all violations
        for observation, result in outdated:
            self._searcher.tell(replace(observation, violation=objective.current.violation(result)))

    def _decide(self, number: int, assignment: RungAssignment, past: Decision | None) -> Decision:
        new = assignment.trial is None
        trial = len(self._configs) if assignment.trial is None else assignment.trial
        refusals: tuple[Refusal, ...] = ()
        redraws = 0
        if new and past is not None and not past.is_new:
            raise SpaceExhausted  # as when this was decided
        draw = len(self._draws)
        if not new:
            config = self._configs[trial]
        elif assignment.fork is not None:
            config = assignment.fork.config(self._configs[assignment.fork.parent])
        elif past is not None:
            config, refusals, redraws = past.config, past.refusals, past.redraws
            self._known.update(refusal.config.digest for refusal in refusals)
            if draw >= len(self._first):
                self._searcher.recall(draw, config, redraws)
        else:
            config, refusals, redraws = self._draw(draw)
        if new:
            self._scheduler.start(trial, assignment)
            self._configs.append(config)
            if assignment.fork is None:
                self._draws[trial] = draw
                self._known.add(config.digest)
        grant = self._grant(trial, assignment)
        return Decision(
            number,
            trial,
            config,
            assignment.bracket,
            assignment.rung,
            grant,
            new,
            assignment.side_by_side,
            refusals,
            redraws,
        )

    def _grant(self, trial: int, assignment: RungAssignment) -> Grant:
        """Return what a rung may spend: a fork what its parent had, and its own epochs on all of the data."""
        if assignment.fork is not None:
            parent = self._grants[assignment.fork.parent][assignment.level]
            return replace(parent, epochs=parent.epochs + assignment.fork_epochs, fresh=True)
        rung = self._rungs[trial] = self._rungs.get(trial, 0) + 1
        grant = self.budget.grant(assignment.level, rung)
        self._grants.setdefault(trial, {})[assignment.level] = grant
        return grant

    def _draw(self, number: int) -> tuple[Config, tuple[Refusal, ...], int]:
        if number < len(self._first):
            return self._first[number], (), 0
        refusals: list[Refusal] = []
        repeats = redraws = 0
        while True:
            config = self._searcher.ask(number, redraws)
            if config.digest in self._known:
                repeats += 1
                if repeats > max(MAX_REPEATS, 2 * len(self._known)) or len(self._known) >= self.space.size:
                    raise SpaceExhausted
            elif (reason := reason_against(self._check, config)) is None:
                return config, tuple(refusals), redraws
            else:
                self._known.add(config.digest)
                refusals.append(Refusal(config, reason))
                if len(refusals) >= MAX_REFUSALS:
                    raise SpaceError(
                        f"the workload refused {len(refusals)} configurations in a row, the last because: {reason}; "
                        "narrow the space or relax the check"
                    )
            redraws += 1

    def _warm_start(self, warm_start: Sequence[Observation]) -> None:
        """Learn the results of another study.

        Unless the caller gave the first configurations, try the best of that study first, or else the defaults.
        """
        for observation in warm_start:
            self._searcher.tell(observation)
            self._known.add(observation.config.digest)
        succeeded = [observation for observation in warm_start if observation.losses is not None]
        if self._first:
            return
        if succeeded:
            top = max(observation.level for observation in succeeded)
            highest = [observation for observation in succeeded if observation.level == top]
            best = min(highest, key=lambda observation: (observation.violation, observation.losses))
            self._first = [best.config]
        elif self.space.has_defaults and reason_against(self._check, self.space.default()) is None:
            self._first = [self.space.default()]
