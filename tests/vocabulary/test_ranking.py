from __future__ import annotations

import math

from onefold import Config, Objective, at_least
from onefold.vocabulary.ranking import front, is_feasible, is_rated, ranked
from onefold.vocabulary.records import Failure, FailureKind, Grant, Metrics, Rung, RungState, Trial

ACCURACY = Objective(maximize="accuracy")


def trial(number: int, *results: Metrics | None, top: int | None = None) -> Trial:
    """Return a trial with one rung per result; None is a failed rung."""
    rungs = []
    for index, metrics in enumerate(results):
        level = top if top is not None and index == len(results) - 1 else index + 1
        rungs.append(
            Rung(
                decision=index,
                trial=number,
                rung=index,
                bracket=0,
                grant=Grant(level, level, 1.0),
                state=RungState.FAILED if metrics is None else RungState.DONE,
                metrics=metrics or {},
                failure=Failure(FailureKind.RAISED, "no") if metrics is None else None,
            )
        )
    return Trial(number, Config(lr=0.1), rungs=tuple(rungs))


def numbers(trials: list[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def test_a_bound_counted_from_the_best_is_taken_from_all_trials() -> None:
    near = Objective(minimize="size", require={"accuracy": at_least("best-0.1")})
    sizes = {0: (0.9, 30.0), 1: (0.85, 20.0), 2: (0.7, 10.0)}
    trials = [trial(n, {"accuracy": accuracy, "size": size}) for n, (accuracy, size) in sizes.items()]
    assert numbers(ranked(trials, near)) == [1, 0, 2]
    assert numbers(front(trials, near)) == [1]


def test_the_highest_comes_first_when_maximized_and_the_lowest_when_minimized() -> None:
    trials = [trial(n, {"accuracy": value, "loss": value}) for n, value in enumerate((0.2, 0.9, 0.5))]
    assert numbers(ranked(trials, ACCURACY)) == [1, 2, 0]
    assert numbers(ranked(trials, Objective(minimize="loss"))) == [0, 2, 1]


def test_a_trial_is_ranked_by_its_latest_finished_rung() -> None:
    trials = [trial(0, {"accuracy": 0.9}, {"accuracy": 0.4}), trial(1, {"accuracy": 0.1}, {"accuracy": 0.5})]
    assert numbers(ranked(trials, ACCURACY)) == [1, 0]


def test_a_higher_level_precedes_a_better_result_of_a_lower_one() -> None:
    trials = [trial(0, {"accuracy": 0.99}), trial(1, {"accuracy": 0.5}, {"accuracy": 0.8})]
    assert numbers(ranked(trials, ACCURACY)) == [1, 0]


def test_trials_that_failed_later_come_last() -> None:
    trials = [trial(0, {"accuracy": 0.9}, None), trial(1, {"accuracy": 0.3})]
    assert numbers(ranked(trials, ACCURACY)) == [1, 0]


def test_feasible_trials_precede_better_infeasible_ones() -> None:
    objective = Objective(minimize="loss", require={"accuracy": at_least(0.8)})
    trials = [trial(0, {"loss": 0.1, "accuracy": 0.5}), trial(1, {"loss": 0.3, "accuracy": 0.9})]
    assert numbers(ranked(trials, objective)) == [1, 0]
    assert not is_feasible(trials[0].metrics, objective)
    assert is_feasible(trials[1].metrics, objective)


def test_trials_without_a_finite_result_are_not_ranked() -> None:
    trials = [trial(0), trial(1, None), trial(2, {"loss": 1.0}), trial(3, {"accuracy": math.nan})]
    assert ranked(trials, ACCURACY) == []
    assert front(trials, ACCURACY) == []
    assert not is_rated({"accuracy": math.inf}, ACCURACY)


def test_the_front_has_the_trials_that_no_other_dominates() -> None:
    objective = Objective(maximize="accuracy", minimize="time_s", require={"accuracy": at_least(0.2)})
    points = [(0.9, 9.0), (0.7, 3.0), (0.6, 4.0), (0.3, 1.0), (0.1, 0.1)]
    trials = [trial(n, {"accuracy": accuracy, "time_s": time_s}) for n, (accuracy, time_s) in enumerate(points)]
    assert numbers(front(trials, objective)) == [0, 1, 3]
    assert numbers(ranked(trials, objective))[-1] == 4
    assert set(numbers(ranked(trials, objective))[:3]) == {0, 1, 3}
