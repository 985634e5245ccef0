"""Results kept in order are in the order that sorting them again would give."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.vocabulary.objective import Objective
from onefold.vocabulary.pareto import Fronts, dominates, fronts
from onefold.vocabulary.ranking import LiveRanking, front, ranked
from onefold.vocabulary.records import (
    Config,
    Failure,
    FailureKind,
    Grant,
    Metrics,
    Rung,
    RungState,
    Trial,
)
from onefold.vocabulary.requirement import at_least, at_most
from onefold.vocabulary.standings import standings

OBJECTIVES = [
    Objective(minimize="loss"),
    Objective(maximize="accuracy", require={"loss": at_most(2)}),
    Objective(minimize="loss", require={"accuracy": at_least("best-1")}),
    Objective(maximize="accuracy", minimize="loss"),
    Objective("accuracy", ("loss", "size"), {"size": at_most(3)}).guarded("accuracy", maximize=True),
    Objective(maximize="accuracy", minimize="loss", require={"size": at_most("best+1"), "loss": at_most(4)}),
]
# Few values, so that equal results are common.
VALUES = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 5.0])
METRICS = st.fixed_dictionaries({"loss": VALUES, "accuracy": VALUES, "size": VALUES})
OUTCOMES = st.one_of(METRICS, st.none(), st.just({"loss": float("nan"), "accuracy": 1.0, "size": 1.0}))


def by_definition(losses: list[tuple[float, ...]]) -> list[list[int]]:
    left, found = list(range(len(losses))), []
    while left:
        found.append([i for i in left if not any(dominates(losses[j], losses[i]) for j in left)])
        left = [i for i in left if i not in found[-1]]
    return found


@given(st.lists(st.tuples(VALUES, VALUES, st.one_of(VALUES, st.just(float("nan"))))))
def test_fronts_are_those_of_the_definition(losses: list[tuple[float, ...]]) -> None:
    assert fronts(losses) == by_definition(losses)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.tuples(VALUES, VALUES, VALUES)), max_size=60))
def test_fronts_that_change_are_those_computed_at_once(steps: list[tuple[bool, int, tuple[float, ...]]]) -> None:
    live, points = Fronts(), dict[int, tuple[float, ...]]()
    for is_added, key, losses in steps:
        if key in points:
            live.remove(key)
            del points[key]
        if is_added:
            live.add(key, losses)
            points[key] = losses
        keys = sorted(points)
        at_once = [{keys[i] for i in layer} for layer in fronts([points[key] for key in keys])]
        assert [set(layer) for layer in live] == at_once


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@given(outcomes=st.lists(st.tuples(st.integers(0, 9), OUTCOMES), max_size=25))
@settings(max_examples=60)
def test_the_best_trial_is_the_first_of_the_ranking(
    objective: Objective, outcomes: list[tuple[int, Metrics | None]]
) -> None:
    live, trials = LiveRanking(objective), dict[int, Trial]()
    for decision, (number, metrics) in enumerate(outcomes):
        trials[number] = with_rung(trials.get(number, Trial(number, Config())), decision, metrics)
        live.update(trials[number])
        ranking = ranked([trials[number] for number in sorted(trials)], objective)
        assert live.best() == (ranking[0].number if ranking else None)
        assert not (members := front(trials.values(), objective)) or ranking[0] in members, "never a dominated one"


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@given(results=st.lists(st.tuples(METRICS, st.integers(0, 4)), max_size=25))
@settings(max_examples=60)
def test_the_candidate_is_the_first_that_is_not_retired(
    objective: Objective, results: list[tuple[Mapping[str, float], int]]
) -> None:
    live, known, retired = standings(objective), list[Metrics](), set[int]()
    for number, (metrics, places) in enumerate(results):
        live.put(number, metrics)
        known.append(metrics)
        expected = next((i for i in objective.order(known)[:places] if i not in retired), None)
        assert live.candidate(places) == expected
        if expected is not None:
            live.retire(expected)
            retired.add(expected)


def with_rung(trial: Trial, decision: int, metrics: Metrics | None) -> Trial:
    at = len(trial.rungs)
    rung = Rung(
        decision,
        trial.number,
        at,
        0,
        Grant(at + 1, at + 1, 1.0),
        state=RungState.FAILED if metrics is None else RungState.DONE,
        metrics=metrics or {},
        failure=Failure(FailureKind.RAISED, "too large") if metrics is None else None,
    )
    return Trial(trial.number, trial.config, rungs=(*trial.rungs, rung))
