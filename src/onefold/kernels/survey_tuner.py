"""Survey tuning: all operators of all models a little at a time, with the whole models in view.

Each round measures a batch of candidates for the operators that promise most, compiles each model with the best so far
and times it. So what a model gains is known all along, and tuning stops when a goal is met, a budget is used up, or a
second of it no longer brings what it did. Operators that models share are tuned once, and those that are alike tell
each other what was fast. With several models, those that gain least are put aside until the others have stopped gaining
too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onefold.kernels.cold_filter import ColdFilter
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.operator_tuner import OperatorTuner, of_weight
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_transfer import from_kin
from onefold.kernels.stopping_rule import no_longer_pays, used_up
from onefold.vocabulary.kernels import CompileBudget, Operator, ScheduleCandidate, TuningRound

BATCH = 8  # candidates of an operator in a round
SHARE = 0.5  # of the operators that are still tuned, in each round after the first
SMALL = 0.02  # of the most that an operator computes: fewer candidates for it at first
WORTH = 0.002  # of a model's time: an operator that promises less is put aside
PLATEAU, PLATEAUS = 0.01, 2  # a round that gains a model less; so many in a row put it aside
NEAR = 1.05  # times its goal: a model that is no slower may have met it, and is looked at more closely
CompileEvent = TuningRound | ScheduleCandidate | str


@dataclass
class SurveyedModel:
    """A model in a survey."""

    whole: ModelCompiler
    rounds: list[TuningRound] = field(default_factory=list)
    goal_s: float | None = None  # a latency at which it is fast enough
    plateaus: int = 0
    suspended: bool = False
    ended: str = ""  # why, where it has

    @property
    def latency_s(self) -> float | None:
        """Of the best library so far, as it was timed last."""
        if self.whole.best is not None:
            return self.whole.best.latency_s
        return min((one.latency_s for one in self.rounds), default=None)

    @property
    def latest_gain(self) -> float:
        """By what share the last round made its operators faster, which are timed with less noise than the model."""
        if len(self.rounds) < 2:
            return 1.0
        pairs = zip(*(each.operators for each in self.rounds[-2:]))
        known = [(before.time_s, now.time_s) for before, now in pairs if before.best_s is not None]
        total = sum(before for before, _ in known)
        return sum(before - now for before, now in known) / total if total else 1.0  # nothing had been tried


@dataclass
class SurveyTuner:
    """Tunes some models within one effort."""

    models: Sequence[SurveyedModel]
    tunings: Mapping[str, OperatorTuner]  # by the operator's key
    effort: CompileBudget
    ledger: PhaseCosts
    folder: Path  # for libraries
    cold: ColdFilter | None = None
    history: Mapping[Operator, Sequence[ScheduleCandidate]] = field(
        default_factory=dict
    )  # of others, or measured elsewhere
    batch: int = BATCH
    in_turn: bool = False  # without the survey: every operator gets the same, and nothing is put aside
    elapsed_s: float = 0.0  # in earlier sittings
    tell: Callable[[CompileEvent], None] = lambda _: None
    began: float = field(default_factory=time.monotonic)

    def run(self) -> str:
        """Tunes until it is enough; says why it stopped."""
        if all(not model.rounds for model in self.models):
            self._measure_models(0)
        number = max((len(model.rounds) for model in self.models), default=1)
        while True:
            why = self._enough()
            if why:
                return why
            self._learn()
            chosen = self._chosen(number)
            if not chosen:
                return "no operator promises anything more"
            self._tune(chosen)
            self._measure_models(number)
            self._put_aside()
            number += 1

    @property
    def now_s(self) -> float:
        """Since it began, earlier sittings included."""
        return self.elapsed_s + time.monotonic() - self.began

    @property
    def measured(self) -> int:
        """Candidates that were measured in this survey."""
        return sum(len(one.candidates) - one.recalled for one in self.tunings.values())

    def _tune(self, chosen: Sequence[OperatorTuner]) -> None:
        for tuning in chosen:
            if used_up(self.effort, self.ledger.spent, self.now_s, self.measured):
                return
            kin = self._kin(tuning)
            is_easy = not tuning.candidates and (kin or self._is_small(tuning))
            count = max(2, self.batch // 2) if is_easy else self.batch
            if self.effort.candidates is not None:
                count = min(count, self.effort.candidates - self.measured)
            with self.ledger.phase("search"):
                tuning.suggest(kin[:count])
            self.tell(f"{tuning.operator.name}: {count} candidate{'s' * (count != 1)}")
            for candidate in tuning.batch(count, self.cold, self.ledger):
                self.tell(candidate)

    def _kin(self, tuning: OperatorTuner) -> list[ScheduleCandidate]:
        """What was fast for operators like it, or for itself elsewhere: a first batch, and some of a later one."""
        if self.in_turn:
            return []
        others = {one.operator: one.candidates for one in self.tunings.values() if one is not tuning}
        return from_kin(tuning.operator, {**self.history, **others}, self.batch // (4 if tuning.candidates else 2))

    def _is_small(self, tuning: OperatorTuner) -> bool:
        """Whether it has next to no work: moving and shaping numbers."""
        most = max(one.operator.flops * one.operator.weight for one in self.tunings.values())
        return tuning.operator.flops * tuning.operator.weight < SMALL * most

    def _chosen(self, number: int) -> list[OperatorTuner]:
        """Where the next round goes: to what promises most of the models' time for a joule."""
        active = [model for model in self.models if not model.ended and not model.suspended]
        open_keys = {operator.key for model in active for operator, _ in model.whole.operators}
        tunings = [one for key, one in self.tunings.items() if key in open_keys and not one.is_used_up]
        untried = [one for one in tunings if not one.candidates]
        if self.in_turn or untried or number <= 1:
            return tunings if self.in_turn else untried or tunings
        promises = {id(one): self._promise(one, active) for one in tunings}
        for one in tunings:
            one.suspended = promises[id(one)] < WORTH
        worthy = [one for one in tunings if not one.suspended]
        worthy.sort(key=lambda one: -promises[id(one)] / (one.joules or 1.0))
        return worthy[: max(1, round(SHARE * len(worthy)))]

    def _promise(self, tuning: OperatorTuner, active: Sequence[SurveyedModel]) -> float:
        """The share of the models' time that the next batch is expected to save, added up over the models."""
        best = tuning.best[0] if tuning.best is not None else 0.0
        total = 0.0
        for model in active:
            weight = sum(one.weight for one, _ in model.whole.operators if one.key == tuning.operator.key)
            total += weight * best * tuning.gain / (model.latency_s or 1.0)
        return total

    def _measure_models(self, number: int) -> None:
        best = {key: one.best[1] for key, one in self.tunings.items() if one.best is not None}
        for model in self.models:
            if model.ended or (model.suspended and model.rounds):
                continue
            self.tell(f"compiling {model.whole.name}")
            timed = model.whole.measured(best, self.folder, self.ledger)
            if model.goal_s is not None and model.goal_s < timed.latency_s <= NEAR * model.goal_s:
                timed = model.whole.settled(self.ledger) or timed
            states = tuple(of_weight(self.tunings[one.key].state, one.weight) for one, _ in model.whole.operators)
            found = TuningRound(number, model.whole.name, timed.latency_s, self.now_s, states, self.ledger.spent)
            model.rounds.append(found)
            self.tell(found)

    def _put_aside(self) -> None:
        """Models that have stopped gaining, the worst of them; all come back when none of the others gains either."""
        active = [model for model in self.models if not model.ended and not model.suspended]
        for model in active:
            model.plateaus = 0 if model.latest_gain >= PLATEAU else model.plateaus + 1
        stuck = [model for model in active if model.plateaus >= PLATEAUS]
        if self.in_turn or len(self.models) < 2 or not stuck:
            return
        if len(stuck) == len(active):
            for model in self.models:
                model.suspended, model.plateaus = False, 0
            return
        min(stuck, key=lambda model: model.latest_gain).suspended = True

    def _enough(self) -> str:
        """Why to stop; empty while there is no reason."""
        falls = self.effort.falls
        for model in self.models:
            if model.ended:
                continue
            if model.goal_s is not None and model.latency_s is not None and model.latency_s <= model.goal_s:
                model.ended = f"the goal is met ({model.latency_s * 1e3:.3g} ms)"
            elif falls is not None and no_longer_pays(model.rounds, falls):
                model.ended = "a second of tuning no longer brings what it did"
        spent = used_up(self.effort, self.ledger.spent, self.now_s, self.measured)
        if spent:
            return spent
        left = [model for model in self.models if not model.ended]
        if all(model.suspended for model in left):  # nobody is left to wait for
            for model in left:
                model.suspended, model.plateaus = False, 0
        return "" if left else self.models[-1].ended

    def _learn(self) -> None:
        """Draws the filter's map anew from all that is known."""
        if self.cold is None:
            return
        with self.ledger.phase("update"):
            mine = {one.operator: one.candidates for one in self.tunings.values() if one.candidates}
            self.cold.learn({**self.history, **mine})
