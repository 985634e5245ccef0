from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_study import simulate

from onefold import Objective, at_least, at_most
from onefold.report import FrontReport, summarize
from onefold.vocabulary.pareto import dominates
from onefold.vocabulary.records import Energy, Epoch, Measurement, TrialState
from onefold.vocabulary.space import Choice, Float


def test_counts_levels_and_promotions_add_up() -> None:
    summary = simulate().summary
    assert sum(summary.counts.values()) == len(summary.trials) == 27
    assert [level.grant.level for level in summary.levels] == [1, 2, 4, 9]
    assert [level.trials for level in summary.levels] == [27, 13, 6, 3]
    assert [level.promoted for level in summary.levels] == [13, 6, 3, 0]
    assert all(level.running == 0 for level in summary.levels)
    assert sum(level.failed for level in summary.levels) == len(summary.failures) == summary.counts[TrialState.FAILED]


def test_the_cost_is_the_sum_of_all_rungs_and_marked_as_an_estimate() -> None:
    summary = simulate().summary
    rungs = [rung for trial in summary.trials for rung in trial.rungs]
    assert summary.cost.time_s == pytest.approx(sum(rung.measurement.time_s for rung in rungs))
    assert summary.cost.energy.joules == pytest.approx(sum(rung.measurement.energy.joules or 0 for rung in rungs))
    assert summary.cost.energy.source == "modelled"
    assert summary.format("energy_j", 2.0) == "≈ 2 J"
    assert simulate(source="rapl").summary.format("energy_j", 2.0) == "2 J"


@pytest.mark.parametrize("objective", [Objective(maximize="accuracy"), Objective(minimize="loss")])
@pytest.mark.parametrize("seed", range(5))
def test_progress_ends_at_the_best_trial(objective: Objective, seed: int) -> None:
    summary = simulate(objective=objective, seed=seed).summary
    assert summary.best is not None
    assert [moment.time_s for moment in summary.progress] == sorted(moment.time_s for moment in summary.progress)
    assert len(summary.progress) == sum(len(trial.finished_rungs) for trial in summary.trials)
    assert summary.progress[-1].best == summary.best.metrics[objective.goals[0].metric]


def test_infeasible_results_are_never_the_best_so_far() -> None:
    summary = simulate(objective=Objective(maximize="accuracy", require={"train_time_s": at_most(1e-6)})).summary
    assert summary.best is not None
    assert not summary.is_feasible(summary.best)
    assert all(moment.best is None and not moment.keeps for moment in summary.progress)
    assert all(level.best is None for level in summary.levels)


def test_several_goals_have_a_pareto_front() -> None:
    objective = Objective(maximize="accuracy", minimize="train_time_s", require={"accuracy": at_least(0.5)})
    summary = simulate(60, objective=objective, rungs="none").summary
    assert summary.front
    assert summary.best in summary.front
    for member in summary.front:
        assert summary.is_feasible(member)
        for other in summary.ranking:
            better = [
                other.metrics["accuracy"] > member.metrics["accuracy"],
                other.metrics["train_time_s"] < member.metrics["train_time_s"],
            ]
            assert not (all(better) and summary.is_feasible(other))
    assert simulate().summary.front == ()


def test_no_trial_that_the_front_is_computed_over_is_undominated_beside_it() -> None:
    objective = Objective(maximize="accuracy", minimize="train_time_s")
    summary = simulate(60, objective=objective).summary
    losses = {trial.number: objective.losses(trial.metrics) for trial in summary.compared}
    undominated = {number for number, own in losses.items() if not any(dominates(o, own) for o in losses.values())}
    assert undominated == {trial.number for trial in summary.front}
    assert len(summary.compared) < len(summary.ranking), "trials that were stopped early are always cheap"
    assert summary.recommendation is not None
    assert summary.best is not None
    assert summary.recommendation.reasons[0].startswith(f"trial {summary.best.number} is on the Pareto front of ")


def test_the_front_has_forms_of_its_own() -> None:
    summary = simulate(60, objective=Objective(maximize="accuracy", minimize="train_time_s"), rungs="none").summary
    report = FrontReport(summary)
    assert [trial["number"] for trial in report.as_json()["front"]] == [t.number for t in summary.front_by_goal]
    assert f"Pareto front: {len(summary.front)} trials" in report.as_text()
    assert "has one goal" in FrontReport(simulate().summary).as_text()


def test_a_study_without_a_front_says_so() -> None:
    two_goals = Objective(maximize="accuracy", minimize="train_time_s")
    empty = FrontReport(simulate(0, objective=two_goals).summary)
    assert "No trial has a result yet, so there is no Pareto front." in empty.as_text()
    assert empty.as_json()["front"] == []
    unmet = Objective("accuracy", minimize="train_time_s", require={"accuracy": at_least(2)})
    text = FrontReport(simulate(9, objective=unmet).summary).as_text()
    assert "No trial meets the requirements, so there is no Pareto front." in text


def test_learning_curves_follow_the_epochs() -> None:
    simulated = simulate()
    summary = simulated.summary
    assert summary.curve_metric == "accuracy"
    best = summary.best
    assert best is not None
    curve = next(curve for curve in summary.curves if curve.trial == best.number)
    assert [number for number, _ in curve.points] == list(range(1, 10))
    assert curve.points[-1][1] == best.metrics["accuracy"]
    assert summary.epochs_of(best) == 9


def test_curves_fall_back_to_what_epochs_report() -> None:
    nothing = Measurement(1.0, 1.0, Energy(None, "unavailable"))
    simulated = simulate(objective=Objective(minimize="parameters"))
    epochs = [Epoch(0, 1, 0, {"train_loss": 1.0, "z": 2.0}, nothing)]
    assert summarize(simulated.study, simulated.trials, epochs).curve_metric == "train_loss"
    assert summarize(simulated.study, simulated.trials, []).curve_metric == ""


def test_missing_spec_is_derived_from_the_trials() -> None:
    simulated = simulate()
    bare = summarize(replace(simulated.study, spec={}), simulated.trials, simulated.epochs)
    assert bare.workload == simulated.study.name
    assert str(bare.objective) == "highest accuracy"
    assert isinstance(bare.parameters["optimizer"], Choice)
    assert isinstance(bare.parameters["lr"], Float)
    only_loss = [
        replace(trial, rungs=tuple(replace(rung, metrics={"loss": 1.0}) for rung in trial.rungs))
        for trial in simulated.trials
    ]
    assert str(summarize(replace(simulated.study, spec={}), only_loss, []).objective) == "lowest loss"


def test_test_metrics_are_those_of_the_best_trial() -> None:
    simulated = simulate()
    best = simulated.summary.best
    assert best is not None
    handed = replace(simulated.study, result={"trial": best.number, "test": {"accuracy": 0.9}})
    assert summarize(handed, simulated.trials, []).test == {"accuracy": 0.9}
    other = replace(simulated.study, result={"trial": best.number + 1, "test": {"accuracy": 0.9}})
    assert summarize(other, simulated.trials, []).test == {}
    assert simulated.summary.test == {}


def test_a_study_without_trials_has_a_summary() -> None:
    summary = simulate(0).summary
    assert summary.best is None
    assert (summary.levels, summary.progress, summary.curves, summary.counts) == ((), (), (), {})
