"""Survey tuning: real candidates of two tiny models."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import outputs_of

from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.cold_filter import MIN_CANDIDATES, ColdFilter
from onefold.kernels.cost_model import CostModel
from onefold.kernels.model_compiler import ModelCompiler, TimedLibrary
from onefold.kernels.operator_tuner import RECALLED_BATCH, OperatorTuner, with_weight
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal, ScheduleSpace
from onefold.kernels.strategies import needs_cost_model
from onefold.kernels.survey_tuner import ACTIVE_SHARE, CompileEvent, SurveyedModel, SurveyTuner
from onefold.vocabulary.errors import ModelError
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
    """A finished survey with its events."""

    compiler: ModelCompiler
    survey: SurveyTuner
    events: list[CompileEvent] = field(default_factory=list)
    why: str = ""

    @property
    def candidates(self) -> list[ScheduleCandidate]:
        return [event for event in self.events if isinstance(event, ScheduleCandidate)]

    def rounds(self, model: str) -> list[TuningRound]:
        return [event for event in self.events if isinstance(event, TuningRound) and event.model == model]


def twin(compiler: ModelCompiler, name: str) -> ModelCompiler:
    """Return the same model without its libraries."""
    result = copy(compiler)
    result.name, result.best, result._finalists = name, None, {}
    return result


def tuners(compiler: ModelCompiler, search: str) -> dict[str, OperatorTuner]:
    """Return a tuner for each operator."""
    model = CostModel() if needs_cost_model(search) else None
    return {
        operator.key: OperatorTuner(operator, module, compiler.runner, search, model, "here", at)
        for at, (operator, module) in enumerate(compiler.operators)
    }


def surveyed(compiler: ModelCompiler, folder: Path, *names: str, search: str, **options: Any) -> Done:
    """Tune copies of a model together."""
    models = [SurveyedModel(twin(compiler, name)) for name in names]
    budget = CompileBudget(candidates=CANDIDATES, gain_drop=None)
    options |= {"candidates_per_round": BATCH}
    survey = SurveyTuner(models, tuners(compiler, search), budget, PhaseCosts(), folder, **options)
    done = Done(compiler, survey)
    done.survey.on_event = done.events.append
    with pytest.MonkeyPatch.context() as patch:  # the operators of such small models promise next to nothing
        patch.setattr("onefold.kernels.survey_tuner.MIN_PROMISE", 0.0)
        done.why = done.survey.run()
    return done


@pytest.fixture(scope="module")
def alone(compiler: ModelCompiler, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A model with a convolution, and random search."""
    return surveyed(compiler, tmp_path_factory.mktemp("alone"), "alone", search="random")


@pytest.fixture(scope="module")
def pair(model: Path, runner: CandidateRunner, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two models that share both layers, the model-guided search, and a filter with too few candidates."""
    inputs = np.ones((1, 4), np.float32)
    compiler = ModelCompiler("layers", model, [inputs], outputs_of(model, [inputs]), runner, 3)
    folder = tmp_path_factory.mktemp("pair")
    return surveyed(compiler, folder, "one", "other", search="model-guided", cold_filter=ColdFilter())


@pytest.fixture(params=["alone", "pair"])
def done(request: pytest.FixtureRequest) -> Done:
    result: Done = request.getfixturevalue(request.param)
    return result


class TestFinishedSurvey:
    def test_measures_as_many_candidates_as_allowed(self, done: Done) -> None:
        assert len(done.candidates) == done.survey.measured == CANDIDATES
        assert done.why == f"{CANDIDATES} candidates measured"

    def test_measures_no_implementation_twice(self, done: Done) -> None:
        assert len({candidate.key for candidate in done.candidates}) == CANDIDATES

    def test_measures_candidates_of_every_operator(self, done: Done) -> None:
        assert {candidate.operator for candidate in done.candidates} == {
            operator.key for operator, _ in done.compiler.operators
        }
        assert all(candidate.latency_s is not None and candidate.latency_s > 0 for candidate in done.candidates)

    def test_times_every_model_before_and_after_each_round(self, done: Done) -> None:
        for model in done.survey.models:
            rounds = done.rounds(model.compiler.name)
            assert rounds == model.rounds
            assert [tuning_round.number for tuning_round in rounds] == list(range(len(rounds)))
            assert len(rounds) >= 3
            assert all(tuning_round.latency_s > 0 for tuning_round in rounds)
            assert model.compiler.best is not None
            assert model.compiler.best.latency_s == model.latency_s
            assert model.compiler.best.file.is_file()

    def test_rounds_are_cumulative(self, done: Done) -> None:
        for before, after in itertools.pairwise(done.rounds(done.survey.models[0].compiler.name)):
            assert after.ended_s > before.ended_s
            assert after.tried > before.tried
            assert after.spent.time_s > before.spent.time_s
            for old, new in zip(before.operators, after.operators):
                assert old.best_s is None or (new.best_s is not None and new.best_s <= old.best_s)

    def test_the_best_of_each_operator_is_its_fastest_candidate(self, done: Done) -> None:
        last = done.rounds(done.survey.models[0].compiler.name)[-1]
        for state in last.operators:
            of_it = [candidate.latency_s for candidate in done.candidates if candidate.operator == state.operator.key]
            assert state.best_s == min(item for item in of_it if item is not None)
            assert (state.tried, state.filtered, state.failed) == (len(of_it), 0, 0)

    def test_phases_add_up_to_no_more_than_the_elapsed_time(self, done: Done) -> None:
        spent = done.survey.costs.total
        assert {"search", "build", "run", "update", "whole"} == set(spent.seconds) == set(PHASES)
        assert spent.time_s <= done.survey.elapsed_s
        assert spent.time_s == pytest.approx(sum(spent.seconds.values()))
        assert sum(candidate.run_s for candidate in done.candidates) <= spent.seconds["run"]

    def test_each_candidate_can_be_replayed(self, done: Done) -> None:
        for candidate in done.candidates:
            made = done.survey.tuners[candidate.operator].space.replay(candidate.trace)
            assert made is not None
            assert (made.key, made.sketch, made.decisions) == (
                candidate.implementation,
                candidate.sketch,
                candidate.decisions,
            )

    def test_after_the_first_round_at_most_half_of_the_operators_are_tuned(self, done: Done) -> None:
        at = [index for index, event in enumerate(done.events) if isinstance(event, TuningRound) and event.number >= 1]
        for start, end in itertools.pairwise([*at, len(done.events)]):
            later = [event for event in done.events[start:end] if isinstance(event, ScheduleCandidate)]
            assert len({item.operator for item in later}) <= max(1, round(ACTIVE_SHARE * len(done.survey.tuners)))


def test_models_share_the_cost_of_common_operators(pair: Done) -> None:
    """Both have the same operators, and each has its own measurements."""
    one, other = (model.spent for model in pair.survey.models)
    for phase in ("build", "run"):
        assert one.seconds[phase] == pytest.approx(other.seconds[phase])
        assert one.seconds[phase] + other.seconds[phase] == pytest.approx(pair.survey.costs.total.seconds[phase])
    assert one.seconds["whole"] + other.seconds["whole"] == pytest.approx(pair.survey.costs.total.seconds["whole"])
    assert pair.survey.models[0].rounds[-1].own == one


def test_operators_that_models_share_are_tuned_once(pair: Done) -> None:
    assert len(pair.survey.tuners) == len(pair.compiler.operators) == 2
    one, other = (pair.rounds(name) for name in ("one", "other"))
    assert [round_.operators for round_ in one] == [round_.operators for round_ in other]


def test_small_operators_get_fewer_candidates_at_first(alone: Done) -> None:
    asked = [
        event.rpartition(": ") for event in alone.events if isinstance(event, str) and event.endswith("candidates")
    ]
    first = {name: int(count.split()[0]) for name, _, count in reversed(asked)}
    assert first["fused_conv2d_add_relu"] == BATCH
    assert first["transpose"] == first["fused_matmul_add1"] == BATCH // 2


class TestRecall:
    """Candidates of earlier compilations."""

    @pytest.fixture
    def recalled(self, alone: Done, compiler: ModelCompiler) -> Mapping[str, OperatorTuner]:
        result = tuners(compiler, "random")  # same seeds: they would sample the same schedules
        for key, tuner in result.items():
            tuner.recall([candidate for candidate in alone.candidates if candidate.operator == key])
        return result

    def test_all_candidates_are_recalled(self, recalled: Mapping[str, OperatorTuner], alone: Done) -> None:
        for key, tuner in recalled.items():
            before = alone.survey.tuners[key]
            assert tuner.candidates == before.candidates
            assert tuner.best is not None
            assert before.best is not None
            assert (tuner.best[0], tuner.best[1].key) == (before.best[0], before.best[1].key)
            assert tuner.history.recalled == len(tuner.candidates)

    def test_the_expected_gain_follows_the_recalled_latencies(
        self, compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
    ) -> None:
        space = ScheduleSpace(*operators["conv2d"], compiler.runner.target, seed=3)
        some = list({item.key: item for item in (space.sample() for _ in range(60)) if item is not None}.values())

        def promised(latencies: list[float]) -> tuple[int, float]:
            tuner = OperatorTuner(*operators["conv2d"], compiler.runner, "random", None, "here")
            known = [replace(candidate_of(tuner, proposal), latency_s=time) for proposal, time in zip(some, latencies)]
            assert len(known) == len(latencies)
            tuner.recall(known)
            return tuner.updates, tuner.expected_gain

        few, gaining, stuck = (
            promised([1.0] * RECALLED_BATCH),
            promised([1.0] * RECALLED_BATCH + [0.5] * 2),
            promised([1.0] * (RECALLED_BATCH + 2)),
        )
        assert (few[0], gaining[0], stuck[0]) == (1, 2, 2)
        assert few[1] > stuck[1]
        assert gaining[1] > stuck[1]

    def test_recalled_candidates_are_not_measured_again(
        self, recalled: Mapping[str, OperatorTuner], alone: Done, operators: dict[str, tuple[Operator, Any]]
    ) -> None:
        tuner = recalled[operators["mean"][0].key]
        result = list(tuner.measure_batch(2, None, PhaseCosts()))
        assert len(result) == 2
        assert not {candidate.implementation for candidate in result} & {
            candidate.implementation for candidate in alone.candidates
        }
        assert len(tuner.candidates) - tuner.recalled == 2

    def test_recalled_candidates_use_no_budget(
        self, recalled: Mapping[str, OperatorTuner], compiler: ModelCompiler, tmp_path: Path
    ) -> None:
        budget = CompileBudget(candidates=1, gain_drop=None)
        survey = SurveyTuner([SurveyedModel(twin(compiler, "again"))], recalled, budget, PhaseCosts(), tmp_path)
        assert survey.measured == 0
        assert survey.run() == "1 candidate measured"
        assert survey.measured == 1

    def test_a_goal_met_by_recalled_candidates_ends_at_once(
        self, recalled: Mapping[str, OperatorTuner], compiler: ModelCompiler, tmp_path: Path
    ) -> None:
        model = SurveyedModel(twin(compiler, "again"), goal_s=1.0)
        survey = SurveyTuner([model], recalled, CompileBudget(), PhaseCosts(), tmp_path)
        assert survey.run().startswith("the goal is met (")
        assert survey.measured == 0
        assert len(survey.models[0].rounds) == 1

    @pytest.mark.parametrize(("goal_s", "looked"), [(0.98, True), (0.5, False), (1.5, True)])
    def test_a_model_near_its_goal_is_timed_again(
        self, recalled: Mapping[str, OperatorTuner], compiler: ModelCompiler, tmp_path: Path, goal_s: float,
        looked: bool, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        model = SurveyedModel(twin(compiler, "again"), goal_s=goal_s)
        first, closely = TimedLibrary(tmp_path / "again.so", 1.0, 0.0), TimedLibrary(tmp_path / "again.so", 0.97, 0.0)

        def seen(timed: TimedLibrary) -> TimedLibrary:
            model.compiler.best = timed
            return timed

        monkeypatch.setattr(model.compiler, "measure", lambda *_: seen(first))
        monkeypatch.setattr(model.compiler, "settle", lambda *_: seen(closely))
        SurveyTuner([model], recalled, CompileBudget(), PhaseCosts(), tmp_path)._measure_models(0)
        assert [tuning_round.latency_s for tuning_round in model.rounds] == [0.97 if looked else 1.0]
        assert model.latency_s == (0.97 if looked else 1.0)

    @pytest.mark.parametrize(("latencies_s", "is_met"), [((0.9, 0.9, 1.2), True), ((0.9, 1.2, 1.2), False)])
    def test_a_goal_is_met_only_in_most_timings(
        self, recalled: Mapping[str, OperatorTuner], compiler: ModelCompiler, tmp_path: Path,
        latencies_s: tuple[float, ...], is_met: bool, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        model = SurveyedModel(twin(compiler, "lucky"), goal_s=1.0)
        lucky = TimedLibrary(tmp_path / "lucky.so", 0.9, 0.0)

        def settle(*_: Any) -> TimedLibrary:
            model.compiler.best = replace(lucky, latencies_s=latencies_s)
            return model.compiler.best

        monkeypatch.setattr(model.compiler, "measure", lambda *_: lucky)
        monkeypatch.setattr(model.compiler, "settle", settle)
        survey = SurveyTuner([model], recalled, CompileBudget(), PhaseCosts(), tmp_path)
        survey._measure_models(0)
        assert survey._stop_reason() == ("the goal is met (0.90 s)" if is_met else "")

    def test_a_model_that_fails_is_not_tuned_any_further(
        self, recalled: Mapping[str, OperatorTuner], compiler: ModelCompiler, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        model = SurveyedModel(twin(compiler, "wrong"))

        def fail(*_: Any) -> TimedLibrary:
            raise ModelError("its outputs differ")

        monkeypatch.setattr(model.compiler, "measure", fail)
        survey = SurveyTuner([model], recalled, CompileBudget(), PhaseCosts(), tmp_path)
        assert survey.run() == model.why_ended == "its outputs differ"
        assert survey.measured == 0

    def test_invalid_traces_are_left_out(
        self, alone: Done, compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
    ) -> None:
        operator, module = operators["mean"]
        tuner = OperatorTuner(operator, module, compiler.runner, "random", None, "here")
        tuner.recall([replace(candidate, trace="{}") for candidate in alone.candidates])
        assert (tuner.candidates, tuner.recalled, tuner.updates) == ([], 0, 0)


def candidate_of(tuner: OperatorTuner, proposal: Proposal) -> ScheduleCandidate:
    """Return a candidate measured on another machine."""
    return ScheduleCandidate(
        tuner.operator.key,
        "there",
        "there",
        9,
        proposal.key,
        proposal.sketch,
        proposal.decisions,
        proposal.trace,
        1e-3,
    )


def test_suggested_schedules_are_measured_first_and_once(
    compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    tuner = OperatorTuner(*operators["mean"], compiler.runner, "random", None, "here")
    elsewhere = ScheduleSpace(*operators["mean"], compiler.runner.target, seed=7)
    some = list({item.key: item for item in (elsewhere.sample() for _ in range(4)) if item is not None}.values())[:2]
    known = [candidate_of(tuner, proposal) for proposal in some]
    tuner.suggest([*known, *known, replace(known[0], implementation="gone", trace="{}", decisions=(1, 2, 3) * 9)])
    result = list(tuner.measure_batch(3, None, PhaseCosts()))
    assert [proposal.implementation for proposal in result[:2]] == [proposal.key for proposal in some]
    assert len({candidate.implementation for candidate in result}) == 3
    tuner.suggest(known)
    assert not {proposal.implementation for proposal in tuner.measure_batch(1, None, PhaseCosts())} & {
        proposal.key for proposal in some
    }


def test_filtered_proposals_are_counted_and_one_is_always_measured(
    compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    operator, module = operators["mean"]
    tuner = OperatorTuner(operator, module, compiler.runner, "random", None, "here")
    chance = np.random.default_rng(0)

    def candidate(key: str, latency: float | None) -> ScheduleCandidate:
        decisions = tuple(int(value) for value in chance.choice((1, 2, 4, 8), 5))
        failure = CandidateFailure.INVALID if latency is None else None
        return ScheduleCandidate(key, compiler.runner.target.name, "here", 1, "", 0, decisions, "[]", latency, failure)

    cold = ColdFilter()
    other = replace(operator, key="other", kind="matmul")
    cold.learn({  # everything of this kind failed
        replace(operator, key="same"): [candidate("same", None) for _ in range(40)],
        other: [candidate("other", float(chance.uniform(1, 2))) for _ in range(MIN_CANDIDATES)],
    })  # fmt: skip
    result = list(tuner.measure_batch(2, cold, PhaseCosts()))
    assert 1 <= len(result) <= 2
    assert tuner.filtered >= 2
    assert tuner.state.filtered == tuner.filtered
    assert len(tuner.seen) >= tuner.filtered  # they are not proposed again
    assert not tuner.is_exhausted


def test_spare_proposals_replace_dropped_ones(
    compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, filtered = (OperatorTuner(*operators["mean"], compiler.runner, "random", None, "here") for _ in range(2))
    proposed = [proposal.key for proposal in plain.strategy.propose(3, spare=2)]
    cold = ColdFilter()
    monkeypatch.setattr(ColdFilter, "is_ready", True)
    monkeypatch.setattr(cold, "select_dropped", lambda examples, updates: [at in (0, 2) for at in range(len(examples))])
    result = list(filtered.measure_batch(3, cold, PhaseCosts()))
    assert [candidate.implementation for candidate in result] == [proposed[1], proposed[3], proposed[4]]
    assert filtered.filtered == 2
    assert {proposed[0], proposed[2]} <= filtered.seen


def test_a_batch_ends_with_the_budget(
    compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left after two candidates pays for none."""
    tuner = OperatorTuner(*operators["mean"], compiler.runner, "random", None, "here")
    built: list[int] = []
    build = compiler.runner.build
    monkeypatch.setattr(compiler.runner, "build", lambda modules: built.append(len(modules)) or build(modules))
    sizes = iter([2.0, 0.0])
    assert len(list(tuner.measure_batch(4, None, PhaseCosts(), lambda: next(sizes)))) == 2
    assert built == [2]
    assert (len(tuner.candidates), tuner.updates, tuner.is_exhausted) == (2, 1, False)
    assert len(list(tuner.measure_batch(2, None, PhaseCosts()))) == 2, "what was not built is proposed again"


def test_an_operator_without_new_schedules_is_exhausted(
    compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    operator, module = operators["transpose"]
    tuner = OperatorTuner(operator, module, compiler.runner, "random", None, "here")
    assert len(list(tuner.measure_batch(3, None, PhaseCosts()))) == 1
    assert not tuner.is_exhausted
    assert list(tuner.measure_batch(3, None, PhaseCosts())) == []
    assert tuner.is_exhausted
    assert tuner.state.suspended


def test_an_untried_operator_has_an_empty_history(
    compiler: ModelCompiler, operators: dict[str, tuple[Operator, Any]]
) -> None:
    tuner = OperatorTuner(*operators["mean"], compiler.runner, "random", None, "here")
    assert (tuner.history.candidates, tuner.history.line) == ((), ())
    assert tuner.state.best_s is None


def test_an_operator_may_have_another_weight_in_another_model(alone: Done) -> None:
    state = next(iter(alone.survey.tuners.values())).state
    heavier = with_weight(state, 5)
    assert heavier.time_s == pytest.approx(5 * state.time_s)
    assert replace(heavier, operator=state.operator) == state


class TestSeveralModels:
    """Suspension, goals and stopping rules."""

    @pytest.fixture
    def survey(self, compiler: ModelCompiler, tmp_path: Path) -> SurveyTuner:
        models = [SurveyedModel(twin(compiler, name), goal_s=0.5) for name in ("fast", "slow")]
        budget = CompileBudget(candidates=1, gain_drop=None)
        return SurveyTuner(models, tuners(compiler, "random"), budget, PhaseCosts(), tmp_path)

    @staticmethod
    def went(model: SurveyedModel, *latencies: float) -> None:
        operator = replace(model.compiler.operators[0][0], weight=1)
        model.rounds[:] = [
            TuningRound(
                number, model.compiler.name, latency, 10.0 * number, (OperatorState(operator, latency),), CompileCost()
            )
            for number, latency in enumerate(latencies)
        ]

    def test_learning_from_the_history_ends_at_a_tenth_of_the_rest_of_the_budget(self, survey: SurveyTuner) -> None:
        answers: list[bool] = []

        class Recorded(ColdFilter):
            def learn(self, histories: Any, is_affordable: Callable[[], bool] = lambda: True) -> None:
                time.sleep(0.01)
                answers.append(is_affordable())

        survey.cold_filter = Recorded()
        for minutes in (None, 10, 0.05 / 60):
            survey.budget, survey.started = CompileBudget(minutes=minutes), time.monotonic()
            survey._update_filter()
        assert answers == [True, True, False]

    def test_a_suspended_model_resumes_when_no_other_is_left(self, survey: SurveyTuner) -> None:
        fast, slow = survey.models
        self.went(fast, 0.1)  # at its goal
        self.went(slow, 1.0)
        slow.suspended = True
        survey.run()
        assert fast.why_ended.startswith("the goal is met")
        assert not slow.suspended
        assert len(slow.rounds) == 2

    def test_each_model_has_its_own_goal(self, survey: SurveyTuner) -> None:
        fast, slow = survey.models
        slow.goal_s = 2.0
        self.went(fast, 1.0)
        self.went(slow, 1.0)
        survey._stop_reason()
        assert not fast.why_ended
        assert slow.why_ended == "the goal is met (1.00 s)"
        fast.compiler.operators = fast.compiler.operators[:1]
        (only, _), *_ = fast.compiler.operators
        assert [item.operator.key for item in survey._select_operators(1)] == [
            only.key
        ]  # operators of the finished model only are not tuned

    def test_the_model_with_the_least_gain_is_suspended(self, survey: SurveyTuner) -> None:
        fast, slow = survey.models
        self.went(fast, 3.0, 2.0, 1.0)
        self.went(slow, 3.0, 2.99, 2.985)
        for _ in range(2):
            survey._suspend_models()
        assert (fast.suspended, slow.suspended) == (False, True)
        self.went(fast, 1.0, 1.0, 1.0)
        for _ in range(2):
            survey._suspend_models()
        assert (fast.suspended, slow.suspended) == (False, False)  # all are on a plateau: all resume

    def test_the_gain_is_computed_from_the_operators(self, survey: SurveyTuner) -> None:
        """The noise of a whole model's latency exceeds the gain of a round."""
        model, _ = survey.models
        assert model.latest_gain == 1.0
        self.went(model, 4.0, 3.0)
        assert model.latest_gain == pytest.approx(0.25)
        model.rounds[:] = [replace(tuning_round, latency_s=1.0 + tuning_round.number) for tuning_round in model.rounds]
        assert model.latest_gain == pytest.approx(0.25)
        untried = OperatorState(model.compiler.operators[0][0], None)
        model.rounds[0] = replace(model.rounds[0], operators=(untried,))
        assert model.latest_gain == 1.0

    def test_round_robin_suspends_no_model(self, survey: SurveyTuner) -> None:
        survey.is_round_robin = True
        fast, slow = survey.models
        self.went(fast, 3.0, 2.0)
        self.went(slow, 3.0, 3.0)
        for _ in range(4):
            survey._suspend_models()
        assert not slow.suspended
        assert len(survey._select_operators(3)) == len(survey.tuners)

    def test_it_ends_when_the_gain_per_second_diminishes(self, survey: SurveyTuner) -> None:
        survey.budget = CompileBudget(gain_drop=0.25)
        for model in survey.models:
            self.went(model, 10.0, 8.0, 7.0, 6.5)
        assert survey.run() == "the gain per second of tuning has diminished"
        assert survey.measured == 0
