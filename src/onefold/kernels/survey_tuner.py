"""Survey tuning: tunes all operators of all models in rounds and measures the whole models after each round.

Each round measures a batch of candidates for the operators that promise most, then compiles each model with the best
candidates so far and times it. The gain of a model is therefore known all along, and tuning stops when a goal is met, a
budget is exhausted, or the gain per second diminishes. Operators that models share are tuned once, and similar ones
exchange their fast schedules. Of several models, those that gain least are suspended until the others have reached a
plateau too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.operator_tuner import OperatorTuner, with_weight
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal
from onefold.kernels.schedule_transfer import transfer_candidates
from onefold.kernels.stopping_rule import (
    affordable_candidates,
    exhausted_limit,
    has_diminishing_gain,
    share_of_rest,
)
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import (
    CANDIDATES_PER_ROUND,
    CompileBudget,
    CompileCost,
    Operator,
    ScheduleCandidate,
    TuningRound,
)
from onefold.vocabulary.quantities import count, duration

ACTIVE_SHARE = 0.5  # of the operators that are tuned in each round after the first
SMALL_SHARE = 0.02  # of the largest operator's work: such an operator gets fewer candidates at first
MIN_PROMISE = 0.002  # of a model's latency: an operator that promises less is suspended
PLATEAU_GAIN, PLATEAU_ROUNDS = 0.01, 2  # a model that gains less in as many consecutive rounds may be suspended
UPDATE_SHARE = 0.1  # of the rest of the budget, for learning from the history: the rest measures candidates
NEAR_GOAL = 1.05  # times its goal: a model this close is timed again
CompileEvent = TuningRound | ScheduleCandidate | str


@dataclass
class SurveyedModel:
    """A model with its progress in a survey."""

    compiler: ModelCompiler
    rounds: list[TuningRound] = field(default_factory=list)
    goal_s: float | None = None  # stop tuning the model at this latency
    plateau_rounds: int = 0
    suspended: bool = False
    is_goal_met: bool = False  # in most timings of the kept libraries
    why_ended: str = ""  # empty while it is tuned
    spent: CompileCost = field(default_factory=CompileCost)  # of it alone, with its share of common operators

    @property
    def latency_s(self) -> float | None:
        """Return the latency of its best library so far."""
        if self.compiler.best is not None:
            return self.compiler.best.latency_s
        return min((tuning_round.latency_s for tuning_round in self.rounds), default=None)

    @property
    def has_met_goal(self) -> bool:
        """Return whether it is as fast as its goal, in most timings or in an earlier run of the same compilation."""
        if self.goal_s is None or self.latency_s is None:
            return False
        return self.latency_s <= self.goal_s and (self.is_goal_met or self.compiler.best is None)

    @property
    def latest_gain(self) -> float:
        """Return the relative gain of its operators in the last round, which is less noisy than the model's own."""
        if len(self.rounds) < 2:
            return 1.0
        pairs = zip(*(tuning_round.operators for tuning_round in self.rounds[-2:]))
        times = [(before.time_s, now.time_s) for before, now in pairs if before.best_s is not None]
        total = sum(before for before, _ in times)
        return sum(before - now for before, now in times) / total if total else 1.0


@dataclass
class SurveyTuner:
    """Tunes models within one budget."""

    models: Sequence[SurveyedModel]
    tuners: Mapping[str, OperatorTuner]  # by operator key
    budget: CompileBudget
    costs: PhaseCosts
    folder: Path  # for libraries
    cold_filter: ColdFilter | None = None
    history: Mapping[Operator, Sequence[ScheduleCandidate]] = field(default_factory=dict)  # other operators or machines
    candidates_per_round: int = CANDIDATES_PER_ROUND
    is_round_robin: bool = False  # tune every operator in every round and suspend none
    earlier_s: float = 0.0  # time of earlier runs of the same compilation
    on_event: Callable[[CompileEvent], None] = lambda _: None
    started: float = field(default_factory=time.monotonic)
    round_cost: CompileCost = field(default_factory=CompileCost)  # expected, of compiling and timing all models once

    def run(self) -> str:
        """Tune until a stopping rule applies; return the reason."""
        if all(not model.rounds for model in self.models):
            self._measure_models(0)
        number = max((len(model.rounds) for model in self.models), default=1)
        while True:
            reason = self._stop_reason()
            if reason:
                return reason
            self._update_filter()
            selected = self._select_operators(number)
            if not selected:
                return "no operator promises a further gain"
            measured = self.measured
            self._tune(selected)
            if self.measured > measured:
                self._measure_models(number)
                self._suspend_models()
                number += 1

    @property
    def elapsed_s(self) -> float:
        """Return the time since the compilation began, including earlier runs."""
        return self.earlier_s + time.monotonic() - self.started

    @property
    def measured(self) -> int:
        """Return the number of candidates measured by this compilation."""
        return sum(len(tuner.candidates) - tuner.recalled for tuner in self.tuners.values())

    @property
    def best_proposals(self) -> dict[str, Proposal]:
        """Return the best proposal of each operator by key."""
        return {key: tuner.best[1] for key, tuner in self.tuners.items() if tuner.best is not None}

    def _tune(self, selected: Sequence[OperatorTuner]) -> None:
        for tuner in selected:
            if self._exhausted():
                return
            transferred = self._transfer(tuner)
            has_head_start = not tuner.candidates and (transferred or self._is_small(tuner))
            size = max(2, self.candidates_per_round // 2) if has_head_start else self.candidates_per_round
            if self.measured:  # otherwise it is unknown what a candidate costs
                size = int(min(size, max(1.0, 2 * self._affordable())))
            if self.budget.candidates is not None:
                size = min(size, self.budget.candidates - self.measured)
            before = self.costs.total
            with self.costs.phase("search"):
                tuner.suggest(transferred[:size])
            self.on_event(f"{tuner.operator.name}: {count(size, 'candidate')}")
            for candidate in tuner.measure_batch(size, self.cold_filter, self.costs, self._affordable):
                self.on_event(candidate)
            key = tuner.operator.key
            owners = [
                model
                for model in self.models
                if not model.why_ended and any(operator.key == key for operator, _ in model.compiler.operators)
            ]
            for model in owners:
                model.spent += (self.costs.total - before).scaled(1 / len(owners))

    def _transfer(self, tuner: OperatorTuner) -> list[ScheduleCandidate]:
        """Return fast candidates of similar operators: for half of the first batch, a quarter of later ones."""
        if self.is_round_robin:
            return []
        others = {other.operator: other.candidates for other in self.tuners.values() if other is not tuner}
        size = self.candidates_per_round // (4 if tuner.candidates else 2)
        return transfer_candidates(tuner.operator, {**self.history, **others}, size)

    def _is_small(self, tuner: OperatorTuner) -> bool:
        """Return whether the operator has next to no work, such as a transpose."""
        largest = max(tuner.operator.flops * tuner.operator.weight for tuner in self.tuners.values())
        return tuner.operator.flops * tuner.operator.weight < SMALL_SHARE * largest

    def _select_operators(self, number: int) -> list[OperatorTuner]:
        """Return the operators of the next round: untried ones, else those with the best expected gain per joule."""
        active = [model for model in self.models if not model.why_ended and not model.suspended]
        active_keys = {operator.key for model in active for operator, _ in model.compiler.operators}
        tuners = [tuner for key, tuner in self.tuners.items() if key in active_keys and not tuner.is_exhausted]
        untried = [tuner for tuner in tuners if not tuner.candidates]
        if self.is_round_robin or untried or number <= 1:
            return tuners if self.is_round_robin else untried or tuners
        promises = {id(tuner): self._promise(tuner, active) for tuner in tuners}
        for tuner in tuners:
            tuner.suspended = promises[id(tuner)] < MIN_PROMISE
        promising = [tuner for tuner in tuners if not tuner.suspended]
        promising.sort(key=lambda one: -promises[id(one)] / (one.batch_joules or 1.0))
        return promising[: max(1, round(ACTIVE_SHARE * len(promising)))]

    def _promise(self, tuner: OperatorTuner, active: Sequence[SurveyedModel]) -> float:
        """Return the share of the models' latency that the next batch is expected to save, summed over the models."""
        best_s = tuner.best[0] if tuner.best is not None else 0.0
        total = 0.0
        for model in active:
            weight = sum(
                operator.weight for operator, _ in model.compiler.operators if operator.key == tuner.operator.key
            )
            total += weight * best_s * tuner.expected_gain / (model.latency_s or 1.0)
        return total

    def _measure_models(self, number: int) -> None:
        """Compile and time the models that are tuned; one that fails is not tuned any further."""
        start = self.costs.total
        for model in self.models:
            if model.why_ended or (model.suspended and model.rounds):
                continue
            self.on_event(f"compiling {model.compiler.name}")
            before = self.costs.total
            try:
                latency_s = self._measure(model)
            except ModelError as error:
                model.why_ended = str(error)
                continue
            finally:
                model.spent += self.costs.total - before
            states = tuple(
                with_weight(self.tuners[operator.key].state, operator.weight)
                for operator, _ in model.compiler.operators
            )
            ended = TuningRound(
                number, model.compiler.name, latency_s, self.elapsed_s, states, self.costs.total, model.spent
            )
            model.rounds.append(ended)
            self.on_event(ended)
        if number > 0:  # the untuned models were compiled before
            self.round_cost = self.costs.total - start

    def _measure(self, model: SurveyedModel) -> float:
        """Return the latency with the best candidates; one that seems to meet the goal is confirmed in turns."""
        timed = model.compiler.measure(self.best_proposals, self.folder, self.costs)
        if model.goal_s is not None and timed.latency_s <= NEAR_GOAL * model.goal_s:
            timed = model.compiler.settle(self.costs, self.is_exhausted) or timed
            model.is_goal_met = timed.meets(model.goal_s)
        return timed.latency_s

    def _suspend_models(self) -> None:
        """Suspend the worst model on a plateau; resume all if every active model is on one."""
        active = [model for model in self.models if not model.why_ended and not model.suspended]
        for model in active:
            model.plateau_rounds = 0 if model.latest_gain >= PLATEAU_GAIN else model.plateau_rounds + 1
        stuck = [model for model in active if model.plateau_rounds >= PLATEAU_ROUNDS]
        if self.is_round_robin or len(self.models) < 2 or not stuck:
            return
        if len(stuck) == len(active):
            _resume(self.models)
            return
        min(stuck, key=lambda model: model.latest_gain).suspended = True

    def _stop_reason(self) -> str:
        """Return why to stop; empty while there is no reason."""
        gain_drop = self.budget.gain_drop
        for model in self.models:
            if model.why_ended:
                continue
            if model.has_met_goal:
                model.why_ended = f"the goal is met ({duration(model.latency_s or 0.0)})"
            elif gain_drop is not None and has_diminishing_gain(model.rounds, gain_drop):
                model.why_ended = "the gain per second of tuning has diminished"
        exhausted = self._exhausted()
        if exhausted:
            return exhausted
        left = [model for model in self.models if not model.why_ended]
        if all(model.suspended for model in left):
            _resume(left)
        return "" if left else self.models[-1].why_ended

    def is_exhausted(self) -> bool:
        """Return whether a limit of the budget is reached."""
        return bool(exhausted_limit(self.budget, self.costs.total, self.elapsed_s, 0))

    def _exhausted(self) -> str:
        """Return which limit is reached, or would be by measuring the models after another batch."""
        return exhausted_limit(self.budget, self.costs.total, self.elapsed_s, self.measured, self.round_cost)

    def _affordable(self) -> float:
        return affordable_candidates(self.budget, self.costs.total, self.elapsed_s, self.measured, self.round_cost)

    def _update_filter(self) -> None:
        """Train the cold filter on all known candidates."""
        if self.cold_filter is None:
            return
        spent, elapsed_s = self.costs.total, self.elapsed_s
        with self.costs.phase("update") as cost_so_far:
            measured = {tuner.operator: tuner.candidates for tuner in self.tuners.values() if tuner.candidates}
            self.cold_filter.learn(
                {**self.history, **measured},
                lambda: share_of_rest(self.budget, spent, elapsed_s, cost_so_far(), self.round_cost) < UPDATE_SHARE,
            )


def _resume(models: Sequence[SurveyedModel]) -> None:
    for model in models:
        model.suspended, model.plateau_rounds = False, 0
