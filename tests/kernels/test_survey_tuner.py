"""Operators tuned a little at a time, with the whole model in view: real candidates of two tiny models."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import answers_of

from onefold.kernels.bench import Bench
from onefold.kernels.cold_filter import ENOUGH, ColdFilter
from onefold.kernels.cost_model import CostModel
from onefold.kernels.model_compiler import ModelCompiler, TimedLibrary
from onefold.kernels.operator_tuner import RECALLED, OperatorTuner, of_weight
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies import needs_model
from onefold.kernels.survey_tuner import SHARE, CompileEvent, SurveyedModel, SurveyTuner
from onefold.vocabulary.kernels import (
    PHASES,
    CandidateFailure,
    CompileBudget,
    CompileCost,
    Operator,
    OperatorState,
    ScheduleCandidate,
    TuningRound,
)

CANDIDATES, BATCH = 12, 4


@dataclass
class Done:
    """A survey of a model, once or twice, and all that it told."""

    whole: ModelCompiler
    survey: SurveyTuner
    told: list[CompileEvent] = field(default_factory=list)
    why: str = ""

    @property
    def candidates(self) -> list[ScheduleCandidate]:
        return [one for one in self.told if isinstance(one, ScheduleCandidate)]

    def rounds(self, model: str) -> list[TuningRound]:
        return [one for one in self.told if isinstance(one, TuningRound) and one.model == model]


def twin(whole: ModelCompiler, name: str) -> ModelCompiler:
    """The same model again, measured by itself."""
    found = copy(whole)
    found.name, found.best, found._kept = name, None, {}
    return found


def tunings(whole: ModelCompiler, search: str) -> dict[str, OperatorTuner]:
    """Of all its operators."""
    model = CostModel() if needs_model(search) else None
    return {
        operator.key: OperatorTuner(operator, module, whole.bench, search, model, "here", at)
        for at, (operator, module) in enumerate(whole.operators)
    }


def surveyed(whole: ModelCompiler, folder: Path, *names: str, search: str, **options: Any) -> Done:
    """Models of these names, each of them the same one, tuned together."""
    models = [SurveyedModel(twin(whole, name)) for name in names]
    effort = CompileBudget(candidates=CANDIDATES, falls=None)
    done = Done(
        whole, SurveyTuner(models, tunings(whole, search), effort, PhaseCosts(), folder, batch=BATCH, **options)
    )
    done.survey.tell = done.told.append
    done.why = done.survey.run()
    return done


@pytest.fixture(scope="module")
def alone(whole: ModelCompiler, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A model with a convolution, and candidates drawn at random."""
    return surveyed(whole, tmp_path_factory.mktemp("alone"), "alone", search="random")


@pytest.fixture(scope="module")
def pair(model: Path, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two models of two layers that share them, a search that learns, and a filter with too little to learn from."""
    inputs = np.ones((1, 4), np.float32)
    whole = ModelCompiler("layers", model, [inputs], answers_of(model, [inputs]), bench, 3)
    folder = tmp_path_factory.mktemp("pair")
    return surveyed(whole, folder, "one", "other", search="breeding", cold=ColdFilter())


@pytest.fixture(params=["alone", "pair"])
def done(request: pytest.FixtureRequest) -> Done:
    found: Done = request.getfixturevalue(request.param)
    return found


class TestASurvey:
    def test_keeps_to_its_candidates(self, done: Done) -> None:
        assert len(done.candidates) == done.survey.measured == CANDIDATES
        assert done.why == f"{CANDIDATES} candidates were measured"

    def test_measures_no_implementation_twice(self, done: Done) -> None:
        assert len({one.key for one in done.candidates}) == CANDIDATES

    def test_measures_candidates_of_every_operator(self, done: Done) -> None:
        assert {one.operator for one in done.candidates} == {operator.key for operator, _ in done.whole.operators}
        assert all(one.latency_s is not None and one.latency_s > 0 for one in done.candidates)

    def test_knows_every_model_before_and_after_each_round(self, done: Done) -> None:
        for model in done.survey.models:
            rounds = done.rounds(model.whole.name)
            assert rounds == model.rounds
            assert [one.number for one in rounds] == list(range(len(rounds)))
            assert len(rounds) >= 3
            assert all(one.latency_s > 0 for one in rounds)
            assert model.whole.best is not None
            assert model.whole.best.latency_s == model.latency_s
            assert model.whole.best.file.is_file()

    def test_its_rounds_only_grow(self, done: Done) -> None:
        for before, after in itertools.pairwise(done.rounds(done.survey.models[0].whole.name)):
            assert after.ended_s > before.ended_s
            assert after.tried > before.tried
            assert after.spent.time_s > before.spent.time_s
            for old, new in zip(before.operators, after.operators):
                assert old.best_s is None or (new.best_s is not None and new.best_s <= old.best_s)

    def test_the_best_of_each_operator_is_the_fastest_that_was_measured(self, done: Done) -> None:
        last = done.rounds(done.survey.models[0].whole.name)[-1]
        for state in last.operators:
            of_it = [one.latency_s for one in done.candidates if one.operator == state.operator.key]
            assert state.best_s == min(one for one in of_it if one is not None)
            assert (state.tried, state.filtered, state.failed) == (len(of_it), 0, 0)

    def test_its_phases_add_up_to_no_more_than_the_time_it_took(self, done: Done) -> None:
        spent = done.survey.ledger.spent
        assert {"search", "build", "run", "update", "whole"} == set(spent.seconds) == set(PHASES)
        assert spent.time_s <= done.survey.now_s
        assert spent.time_s == pytest.approx(sum(spent.seconds.values()))
        assert sum(one.run_s for one in done.candidates) <= spent.seconds["run"]

    def test_each_candidate_can_be_made_again(self, done: Done) -> None:
        for one in done.candidates:
            made = done.survey.tunings[one.operator].space.remade(one.trace)
            assert made is not None
            assert (made.key, made.sketch, made.decisions) == (one.implementation, one.sketch, one.decisions)

    def test_after_the_first_round_at_most_half_of_the_operators_are_tuned(self, done: Done) -> None:
        at = [place for place, one in enumerate(done.told) if isinstance(one, TuningRound) and one.number >= 1]
        for start, end in itertools.pairwise([*at, len(done.told)]):
            later = [one for one in done.told[start:end] if isinstance(one, ScheduleCandidate)]
            assert len({one.operator for one in later}) <= max(1, round(SHARE * len(done.survey.tunings)))


def test_operators_that_models_share_are_tuned_once(pair: Done) -> None:
    assert len(pair.survey.tunings) == len(pair.whole.operators) == 2
    one, other = (pair.rounds(name) for name in ("one", "other"))
    assert [round_.operators for round_ in one] == [round_.operators for round_ in other]


def test_operators_with_next_to_no_work_get_fewer_candidates_at_first(alone: Done) -> None:
    asked = [one.rpartition(": ") for one in alone.told if isinstance(one, str) and one.endswith("candidates")]
    first = {name: int(count.split()[0]) for name, _, count in reversed(asked)}
    assert first["fused_conv2d_add_relu"] == BATCH
    assert first["transpose"] == first["fused_matmul_add1"] == BATCH // 2


class TestRecalling:
    """What earlier compilations measured."""

    @pytest.fixture
    def recalled(self, alone: Done, whole: ModelCompiler) -> Mapping[str, OperatorTuner]:
        found = tunings(whole, "random")  # of the same seeds: it would draw the same again
        for key, tuning in found.items():
            tuning.recall([one for one in alone.candidates if one.operator == key])
        return found

    def test_it_is_all_there_again(self, recalled: Mapping[str, OperatorTuner], alone: Done) -> None:
        for key, tuning in recalled.items():
            before = alone.survey.tunings[key]
            assert tuning.candidates == before.candidates
            assert tuning.best is not None
            assert before.best is not None
            assert (tuning.best[0], tuning.best[1].key) == (before.best[0], before.best[1].key)
            assert tuning.history.recalled == len(tuning.candidates)

    def test_it_promises_what_it_showed(self, whole: ModelCompiler, operators: dict[str, tuple[Operator, Any]]) -> None:
        space = ScheduleSpace(*operators["conv2d"], whole.bench.target, seed=3)
        some = list({one.key: one for one in (space.random() for _ in range(60)) if one is not None}.values())

        def promised(latencies: list[float]) -> tuple[int, float]:
            tuning = OperatorTuner(*operators["conv2d"], whole.bench, "random", None, "here")
            known = [replace(candidate_of(tuning, one), latency_s=time) for one, time in zip(some, latencies)]
            assert len(known) == len(latencies)
            tuning.recall(known)
            return tuning.updates, tuning.gain

        few, gaining, stuck = (
            promised([1.0] * RECALLED),
            promised([1.0] * RECALLED + [0.5] * 2),
            promised([1.0] * (RECALLED + 2)),
        )
        assert (few[0], gaining[0], stuck[0]) == (1, 2, 2)
        assert few[1] > stuck[1]
        assert gaining[1] > stuck[1]

    def test_nothing_of_it_is_measured_again(
        self, recalled: Mapping[str, OperatorTuner], alone: Done, operators: dict[str, tuple[Operator, Any]]
    ) -> None:
        tuning = recalled[operators["mean"][0].key]
        found = list(tuning.batch(2, None, PhaseCosts()))
        assert len(found) == 2
        assert not {one.implementation for one in found} & {one.implementation for one in alone.candidates}
        assert len(tuning.candidates) - tuning.recalled == 2

    def test_it_counts_for_no_budget(
        self, recalled: Mapping[str, OperatorTuner], whole: ModelCompiler, tmp_path: Path
    ) -> None:
        effort = CompileBudget(candidates=1, falls=None)
        survey = SurveyTuner([SurveyedModel(twin(whole, "again"))], recalled, effort, PhaseCosts(), tmp_path)
        assert survey.measured == 0
        assert survey.run() == "1 candidates were measured"
        assert survey.measured == 1

    def test_a_goal_that_is_met_by_it_is_met_at_once(
        self, recalled: Mapping[str, OperatorTuner], whole: ModelCompiler, tmp_path: Path
    ) -> None:
        model = SurveyedModel(twin(whole, "again"), goal_s=1.0)
        survey = SurveyTuner([model], recalled, CompileBudget(), PhaseCosts(), tmp_path)
        assert survey.run().startswith("the goal is met (")
        assert survey.measured == 0
        assert len(survey.models[0].rounds) == 1

    @pytest.mark.parametrize(("goal_s", "looked"), [(0.98, True), (0.5, False), (1.5, False)])
    def test_a_model_near_its_goal_is_looked_at_more_closely(
        self, recalled: Mapping[str, OperatorTuner], whole: ModelCompiler, tmp_path: Path, goal_s: float, looked: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        model = SurveyedModel(twin(whole, "again"), goal_s=goal_s)
        first, closely = TimedLibrary(tmp_path / "again.so", 1.0, 0.0), TimedLibrary(tmp_path / "again.so", 0.97, 0.0)

        def seen(timed: TimedLibrary) -> TimedLibrary:
            model.whole.best = timed
            return timed

        monkeypatch.setattr(model.whole, "measured", lambda *_: seen(first))
        monkeypatch.setattr(model.whole, "settled", lambda _: seen(closely))
        SurveyTuner([model], recalled, CompileBudget(), PhaseCosts(), tmp_path)._measure_models(0)
        assert [one.latency_s for one in model.rounds] == [0.97 if looked else 1.0]
        assert model.latency_s == (0.97 if looked else 1.0)

    def test_traces_that_nobody_can_follow_are_left_out(
        self, alone: Done, whole: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
    ) -> None:
        operator, module = operators["mean"]
        tuning = OperatorTuner(operator, module, whole.bench, "random", None, "here")
        tuning.recall([replace(one, trace="{}") for one in alone.candidates])
        assert (tuning.candidates, tuning.recalled, tuning.updates) == ([], 0, 0)


def candidate_of(tuning: OperatorTuner, proposal: Proposal) -> ScheduleCandidate:
    """As if it had been measured somewhere else."""
    return ScheduleCandidate(
        tuning.operator.key,
        "there",
        "there",
        9,
        proposal.key,
        proposal.sketch,
        proposal.decisions,
        proposal.trace,
        1e-3,
    )


def test_what_was_fast_elsewhere_is_measured_first_and_once(
    whole: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    tuning = OperatorTuner(*operators["mean"], whole.bench, "random", None, "here")
    elsewhere = ScheduleSpace(*operators["mean"], whole.bench.target, seed=7)
    some = list({one.key: one for one in (elsewhere.random() for _ in range(4)) if one is not None}.values())[:2]
    known = [candidate_of(tuning, one) for one in some]
    tuning.suggest([*known, *known, replace(known[0], implementation="gone", trace="{}", decisions=(1, 2, 3) * 9)])
    found = list(tuning.batch(3, None, PhaseCosts()))
    assert [one.implementation for one in found[:2]] == [one.key for one in some]
    assert len({one.implementation for one in found}) == 3
    tuning.suggest(known)
    assert not {one.implementation for one in tuning.batch(1, None, PhaseCosts())} & {one.key for one in some}


def test_what_the_filter_drops_is_counted_and_never_all(
    whole: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    operator, module = operators["mean"]
    tuning = OperatorTuner(operator, module, whole.bench, "random", None, "here")
    chance = np.random.default_rng(0)

    def candidate(key: str, latency: float | None) -> ScheduleCandidate:
        decisions = tuple(int(one) for one in chance.choice((1, 2, 4, 8), 5))
        failure = CandidateFailure.INVALID if latency is None else None
        return ScheduleCandidate(key, whole.bench.target.name, "here", 1, "", 0, decisions, "[]", latency, failure)

    cold = ColdFilter()
    other = replace(operator, key="other", kind="matmul")
    cold.learn({  # everything of this kind failed
        replace(operator, key="same"): [candidate("same", None) for _ in range(40)],
        other: [candidate("other", float(chance.uniform(1, 2))) for _ in range(ENOUGH)],
    })  # fmt: skip
    found = list(tuning.batch(2, cold, PhaseCosts()))
    assert 1 <= len(found) <= 2
    assert tuning.filtered >= 2
    assert tuning.state.filtered == tuning.filtered
    assert len(tuning.seen) >= tuning.filtered  # they are not proposed again
    assert not tuning.is_used_up


def test_the_next_best_take_the_place_of_what_is_dropped(
    whole: ModelCompiler, operators: dict[str, tuple[Operator, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, filtered = (OperatorTuner(*operators["mean"], whole.bench, "random", None, "here") for _ in range(2))
    proposed = [one.key for one in plain.search.propose(3, spare=2)]
    cold = ColdFilter()
    monkeypatch.setattr(ColdFilter, "is_ready", True)
    monkeypatch.setattr(cold, "drops", lambda examples, updates: [at in (0, 2) for at in range(len(examples))])
    found = list(filtered.batch(3, cold, PhaseCosts()))
    assert [one.implementation for one in found] == [proposed[1], proposed[3], proposed[4]]
    assert filtered.filtered == 2
    assert {proposed[0], proposed[2]} <= filtered.seen


def test_an_operator_of_which_everything_is_known_is_used_up(
    whole: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    operator, module = operators["transpose"]
    tuning = OperatorTuner(operator, module, whole.bench, "random", None, "here")
    assert len(list(tuning.batch(3, None, PhaseCosts()))) == 1
    assert not tuning.is_used_up
    assert list(tuning.batch(3, None, PhaseCosts())) == []
    assert tuning.is_used_up
    assert tuning.state.suspended


def test_an_operator_that_was_never_tried_has_an_empty_history(
    whole: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    tuning = OperatorTuner(*operators["mean"], whole.bench, "random", None, "here")
    assert (tuning.history.candidates, tuning.history.line) == ((), ())
    assert tuning.state.best_s is None


def test_an_operator_may_weigh_more_in_another_model(alone: Done) -> None:
    state = next(iter(alone.survey.tunings.values())).state
    heavier = of_weight(state, 5)
    assert heavier.time_s == pytest.approx(5 * state.time_s)
    assert replace(heavier, operator=state.operator) == state


class TestSeveralModels:
    """Who waits for whom."""

    @pytest.fixture
    def survey(self, whole: ModelCompiler, tmp_path: Path) -> SurveyTuner:
        models = [SurveyedModel(twin(whole, name), goal_s=0.5) for name in ("fast", "slow")]
        effort = CompileBudget(candidates=1, falls=None)
        return SurveyTuner(models, tunings(whole, "random"), effort, PhaseCosts(), tmp_path)

    @staticmethod
    def went(model: SurveyedModel, *latencies: float) -> None:
        operator = replace(model.whole.operators[0][0], weight=1)
        model.rounds[:] = [
            TuningRound(
                number, model.whole.name, latency, 10.0 * number, (OperatorState(operator, latency),), CompileCost()
            )
            for number, latency in enumerate(latencies)
        ]

    def test_one_that_was_put_aside_comes_back_when_nobody_else_is_left(self, survey: SurveyTuner) -> None:
        fast, slow = survey.models
        self.went(fast, 0.1)  # at its goal
        self.went(slow, 1.0)
        slow.suspended = True
        survey.run()
        assert fast.ended.startswith("the goal is met")
        assert not slow.suspended
        assert len(slow.rounds) == 2

    def test_each_has_a_goal_of_its_own(self, survey: SurveyTuner) -> None:
        fast, slow = survey.models
        slow.goal_s = 2.0
        self.went(fast, 1.0)
        self.went(slow, 1.0)
        survey._enough()
        assert not fast.ended
        assert slow.ended == "the goal is met (1e+03 ms)"
        fast.whole.operators = fast.whole.operators[:1]
        (only, _), *_ = fast.whole.operators
        assert [one.operator.key for one in survey._chosen(1)] == [only.key]  # what only the other has is left alone

    def test_the_one_that_gains_least_is_put_aside(self, survey: SurveyTuner) -> None:
        fast, slow = survey.models
        self.went(fast, 3.0, 2.0, 1.0)
        self.went(slow, 3.0, 2.99, 2.985)
        for _ in range(2):
            survey._put_aside()
        assert (fast.suspended, slow.suspended) == (False, True)
        self.went(fast, 1.0, 1.0, 1.0)
        for _ in range(2):
            survey._put_aside()
        assert (fast.suspended, slow.suspended) == (False, False)  # none gains: all come back

    def test_the_gain_is_that_of_the_operators(self, survey: SurveyTuner) -> None:
        """A whole model is timed with more noise than a round gains."""
        model, _ = survey.models
        assert model.latest_gain == 1.0
        self.went(model, 4.0, 3.0)
        assert model.latest_gain == pytest.approx(0.25)
        model.rounds[:] = [replace(one, latency_s=1.0 + one.number) for one in model.rounds]
        assert model.latest_gain == pytest.approx(0.25)
        untried = OperatorState(model.whole.operators[0][0], None)
        model.rounds[0] = replace(model.rounds[0], operators=(untried,))
        assert model.latest_gain == 1.0

    def test_in_turn_nobody_is_put_aside(self, survey: SurveyTuner) -> None:
        survey.in_turn = True
        fast, slow = survey.models
        self.went(fast, 3.0, 2.0)
        self.went(slow, 3.0, 3.0)
        for _ in range(4):
            survey._put_aside()
        assert not slow.suspended
        assert len(survey._chosen(3)) == len(survey.tunings)

    def test_it_ends_when_a_second_no_longer_brings_what_it_did(self, survey: SurveyTuner) -> None:
        survey.effort = CompileBudget(falls=-0.25)
        for model in survey.models:
            self.went(model, 10.0, 8.0, 7.0, 6.5)
        assert survey.run() == "a second of tuning no longer brings what it did"
        assert survey.measured == 0
