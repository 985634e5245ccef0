"""The search: an algorithm that proposes, a ladder that promotes, and one rule that makes both repeatable.

    search = Search(space, objective=Objective(minimize="loss"), budget=Budget(trials=20))
    while (decision := search.ask()) is not None:
        search.tell(decision.number, {"loss": f(decision.config)})

**The rule.** Decisions are numbered. Decision `d` may look at the results of decisions `0 … d - window` and at no
others, however early those came in; when the ladder needs more, they are shown to it one by one in the order of their
numbers. So what is decided depends on the seed and on the results, never on which worker was faster, and a resumed
study decides as an undisturbed one would have. The window is how many visits may be under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from onefold.search.algorithms import searcher
from onefold.search.ladder import Move, Pause, ladder
from onefold.search.searcher import Observation, SpaceExhausted
from onefold.vocabulary.errors import BudgetError, SpaceError
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Config, Grant, Metrics, Refusal, TrialState
from onefold.vocabulary.space import Space
from onefold.vocabulary.workload import reason_against

Algorithm = str | Mapping[str, str]
MOST_REFUSALS = 200
MOST_REPEATS = 50


@dataclass(frozen=True, slots=True)
class Decision:
    """One visit to be made, of trial `trial` with `config`, within `grant`."""

    number: int
    trial: int
    config: Config
    bracket: int
    rung: int
    grant: Grant
    new: bool
    side_by_side: int | None = None
    refusals: tuple[Refusal, ...] = ()
    redraws: int = 0  # draws before this one that were refused or known already


class Search:
    """Ask for the next visit, tell what it showed. Several visits may be under way at once, up to `window`."""

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
        check: Callable[[Config], None] = lambda config: None,  # noqa: ARG005
        sittings: Sequence[int] = (),
        warm_start: Sequence[Observation] = (),
        first: Sequence[Config] = (),
        arms: Sequence[Sequence[int]] = (),
    ) -> None:
        if not len(space):
            raise SpaceError("the space is empty: give it at least one Float, Int or Choice")
        if window < 1:
            raise BudgetError(f"the window must be 1 or more, but got {window}")
        self.space = space
        self.objective = objective
        self.budget = budget or Budget()
        self._window = window
        self._check = check
        self._searcher = searcher(algorithm, space, seed, len(objective.goals))
        sittings = tuple(sittings) or (self.budget.trials,)
        self._ladder = ladder(rungs, self.budget, objective, sittings, top_k=top_k, slots=slots, arms=arms)
        self._decisions: list[Decision] = []
        self._results: dict[int, Metrics | None] = {}
        self._shown = 0  # how many results, in the order of their decisions, the algorithm and the ladder have seen
        self._configs: list[Config] = []  # by trial
        self._told: dict[int, list[tuple[Observation, Metrics]]] = {}  # by level
        self._judges: dict[int, Objective] = {}  # by level: the objective against the best that was told
        self._visits: dict[int, int] = {}
        self._known: set[str] = set()
        self._first = list(first)  # to be tried before anything is drawn
        self._over = False
        self.exhausted = False  # whether the space ran out of configurations before the trials did
        self._take_over(warm_start)

    @property
    def finished(self) -> bool:
        """Whether everything is decided and told."""
        return self._over and len(self._results) == len(self._decisions)

    def states(self) -> dict[int, TrialState]:
        """Where each trial stands."""
        return self._ladder.states()

    def ask(self, past: Decision | None = None) -> Decision | None:
        """The next visit to make; None when results must be told first, or when the search is over.

        `past` is what was decided at this point in an earlier life; it is taken in place of a new draw.
        """
        number = len(self._decisions)
        while self._shown < number - self._window + 1:
            if not self._show_next():
                return None
        while True:
            move = self._ladder.move()
            if move is Pause.END:
                self._over = True
                return None
            if move is Pause.WAIT:
                if not self._show_next():
                    return None
                continue
            assert isinstance(move, Move)
            try:
                decision = self._decide(number, move, past)
            except SpaceExhausted:
                self.exhausted = True
                self._ladder.run_out()
                continue
            self._decisions.append(decision)
            return decision

    def tell(self, number: int, metrics: Metrics | None) -> None:
        """What the visit of decision `number` showed; None when it failed. Telling twice changes nothing."""
        if not 0 <= number < len(self._decisions):
            raise BudgetError(f"decision {number} was never made; there are {len(self._decisions)}")
        if metrics is not None:
            self.objective.check(metrics)
        self._results.setdefault(number, metrics)

    def _show_next(self) -> bool:
        if self._shown not in self._results:
            return False
        decision, metrics = self._decisions[self._shown], self._results[self._shown]
        self._shown += 1
        self._ladder.tell(decision.trial, decision.rung, metrics)
        self._tell_searcher(decision, metrics)
        return True

    def _tell_searcher(self, decision: Decision, metrics: Metrics | None) -> None:
        level = decision.grant.level
        seen = Observation(decision.trial, level, decision.config, None)
        if metrics is None:
            self._searcher.tell(seen)
            return
        self._told.setdefault(level, []).append((replace(seen, losses=self.objective.losses(metrics)), metrics))
        judge = self.objective.settled(found for _, found in self._told[level])
        if judge != self._judges.get(level, judge):  # a new best: what was within reach of the old one may not be now
            again = self._told[level]
        else:
            again = self._told[level][-1:]
        self._judges[level] = judge
        for observation, found in again:
            self._searcher.tell(replace(observation, violation=judge.violation(found)))

    def _decide(self, number: int, move: Move, past: Decision | None) -> Decision:
        new = move.trial is None
        trial = len(self._configs) if move.trial is None else move.trial
        refusals: tuple[Refusal, ...] = ()
        redraws = 0
        if new and past is not None and not past.new:
            raise SpaceExhausted  # as it was when this was decided
        if not new:
            config = self._configs[trial]
        elif past is not None:
            config, refusals, redraws = past.config, past.refusals, past.redraws
            self._known.update(refusal.config.digest for refusal in refusals)
            if trial >= len(self._first):
                self._searcher.recall(trial, config, redraws)
        else:
            config, refusals, redraws = self._draw(trial)
        if new:
            self._ladder.started(trial, move)
            self._configs.append(config)
            self._known.add(config.digest)
        visit = self._visits[trial] = self._visits.get(trial, 0) + 1
        grant = self.budget.grant(move.level, visit)
        return Decision(
            number, trial, config, move.bracket, move.rung, grant, new, move.side_by_side, refusals, redraws
        )

    def _draw(self, trial: int) -> tuple[Config, tuple[Refusal, ...], int]:
        if trial < len(self._first):
            return self._first[trial], (), 0
        refusals: list[Refusal] = []
        repeats = redraws = 0
        while True:
            config = self._searcher.ask(trial, redraws)
            if config.digest in self._known:
                repeats += 1
                if repeats > max(MOST_REPEATS, 2 * len(self._known)) or len(self._known) >= self.space.size:
                    raise SpaceExhausted
            elif (reason := reason_against(self._check, config)) is None:
                return config, tuple(refusals), redraws
            else:
                self._known.add(config.digest)
                refusals.append(Refusal(config, reason))
                if len(refusals) >= MOST_REFUSALS:
                    raise SpaceError(
                        f"the workload rejected {len(refusals)} draws in a row; the last one because: {reason}. "
                        "Narrow the space or loosen the check"
                    )
            redraws += 1

    def _take_over(self, warm_start: Sequence[Observation]) -> None:
        """Learns what another study found; its best configuration is tried first, the author's defaults otherwise.

        Unless the caller has said what to try first.
        """
        for observation in warm_start:
            self._searcher.tell(observation)
            self._known.add(observation.config.digest)
        able = [o for o in warm_start if o.losses is not None]
        if self._first:
            return
        if able:
            top = max(o.level for o in able)
            best = min((o for o in able if o.level == top), key=lambda o: (o.violation, o.losses))
            self._first = [best.config]
        elif self.space.has_defaults and reason_against(self._check, self.space.default()) is None:
            self._first = [self.space.default()]
