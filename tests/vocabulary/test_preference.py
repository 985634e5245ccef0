"""Which trial of a Pareto front is handed over: undominated, within the guard, and by the weights."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.pareto import dominates
from onefold.vocabulary.preference import GUARD_SHARE, Preference, preference
from onefold.vocabulary.records import Metrics
from onefold.vocabulary.requirement import at_least, at_most

VALUES = st.sampled_from([0.1, 0.5, 0.9, 0.95, 1.0]) | st.floats(0.01, 1.0)
RESULTS = st.lists(
    st.fixed_dictionaries({"accuracy": VALUES, "latency_s": VALUES, "size": VALUES}), min_size=1, max_size=12
)
PREFERENCES = st.one_of(
    st.none(),
    st.sampled_from(["accuracy", "latency_s", "accuracy=2,latency_s=1"]),
    st.dictionaries(st.sampled_from(["accuracy", "latency_s", "size"]), st.floats(0.1, 9.0)),
)


def objective(prefer: Preference | dict[str, float] | str | None = None, **require: float) -> Objective:
    bounds = {metric: at_most(limit) for metric, limit in require.items()}
    return Objective("accuracy", ("latency_s", "size"), bounds, prefer).guarded("accuracy", maximize=True)


@given(RESULTS, PREFERENCES)
def test_the_trial_handed_over_is_never_dominated_and_meets_the_guard(
    results: list[Metrics], prefer: dict[str, float] | str | None
) -> None:
    wanted = objective(prefer)
    chosen = results[wanted.order_of_preference(results)[0]]
    assert not any(dominates(wanted.losses(other), wanted.losses(chosen)) for other in results)
    best = max(metrics["accuracy"] for metrics in results)
    assert chosen["accuracy"] >= best * (1 - GUARD_SHARE) - 1e-12


@given(RESULTS, st.sampled_from(["accuracy", "latency_s", "size"]))
def test_a_preferred_goal_is_the_best_within_the_guard(results: list[Metrics], metric: str) -> None:
    wanted = objective(metric)
    chosen = results[wanted.order_of_preference(results)[0]]
    front = [results[i] for i in wanted.front(results)]
    admitted = [metrics for metrics in front if wanted.front_choice(front).admits(metrics)]
    goal = next(goal for goal in wanted.goals if goal.metric == metric)
    best = min(goal.loss(metrics[metric]) for metrics in admitted)
    assert goal.loss(chosen[metric]) == pytest.approx(best, rel=1e-12), "values of one logarithm are equal"


@given(RESULTS)
def test_an_empty_guard_admits_the_whole_front(results: list[Metrics]) -> None:
    wanted = objective(Preference({"latency_s": 1}, guard={}))
    chosen = results[wanted.order_of_preference(results)[0]]
    assert chosen["latency_s"] == pytest.approx(min(metrics["latency_s"] for metrics in results), rel=1e-12)


def test_the_knee_is_chosen_by_default() -> None:
    points = [(0.92, 100.0, 100.0), (0.91, 10.0, 10.0), (0.90, 9.5, 9.9), (0.40, 1.0, 1.0)]
    results = [dict(zip(("accuracy", "latency_s", "size"), point)) for point in points]
    assert objective().order_of_preference(results) == [1, 2, 0, 3]
    assert objective("accuracy").order_of_preference(results)[0] == 0
    assert objective("latency_s").order_of_preference(results)[0] == 2


@pytest.mark.parametrize(
    ("other", "chosen"),
    [
        ((0.947, 10.0), 1),  # 3.1 times smaller for a third of a point
        ((0.92, 30.0), 0),  # 3 % smaller for three points
        ((0.945, 30.0), 0),  # 3 % smaller for half a point
        ((0.95, 30.0), 1),
    ],
)
@pytest.mark.parametrize("guarded", [True, False])
def test_the_goals_of_two_trials_count_as_much_as_they_differ(
    other: tuple[float, float], chosen: int, guarded: bool
) -> None:
    results = [{"accuracy": accuracy, "size": size} for accuracy, size in ((0.95, 31.0), other)]
    plain = Objective("accuracy", "size")
    wanted = plain.guarded("accuracy", maximize=True) if guarded else plain
    assert wanted.order_of_preference(results)[0] == chosen


def test_a_wider_guard_lets_more_accuracy_go() -> None:
    results = [{"accuracy": 0.9, "size": 30.0}, {"accuracy": 0.86, "size": 10.0}, {"accuracy": 0.78, "size": 5.0}]
    assert objective_of_size("best-5%").order_of_preference(results)[0] == 1
    assert objective_of_size("best-1%").order_of_preference(results)[0] == 0
    assert objective_of_size("best-99%").order_of_preference(results)[0] == 2


def objective_of_size(guard: str) -> Objective:
    return Objective("accuracy", "size", prefer=Preference(guard={"accuracy": at_least(guard)}))


@given(RESULTS, PREFERENCES, st.floats(0.9, 2.0), st.sampled_from(["best", "best-5%", "best-50%"]))
def test_a_guard_that_cannot_be_met_is_violated_least(
    results: list[Metrics], prefer: dict[str, float] | str | None, limit: float, relative: str
) -> None:
    guard = {"accuracy": (at_least(relative), at_least(limit))}
    weights = preference(prefer).weights
    wanted = objective(Preference(weights, guard))
    front = [results[i] for i in wanted.front(results)]
    chosen = results[wanted.order_of_preference(results)[0]]
    if not any(wanted.front_choice(front).admits(metrics) for metrics in front):
        assert chosen["accuracy"] == max(metrics["accuracy"] for metrics in front)
    assert Objective.from_json(json.loads(json.dumps(wanted.to_json()))).front_choice(front).admits(
        chosen
    ) == wanted.front_choice(front).admits(chosen)


def test_a_guard_may_be_on_a_metric_that_is_no_goal() -> None:
    wanted = Objective(minimize=("latency_s", "size")).guarded("accuracy", maximize=True)
    results = [
        {"accuracy": 0.5, "latency_s": 1.0, "size": 1.5},
        {"accuracy": 0.9, "latency_s": 3.0, "size": 1.0},
        {"accuracy": 0.99, "latency_s": 4.0, "size": 4.0},
    ]
    assert wanted.order_of_preference(results) == [1, 0, 2], "the last one is dominated"
    unknown = [{"latency_s": 1.0, "size": 2.0}, {"latency_s": 2.0, "size": 1.0}]
    assert sorted(wanted.order_of_preference(unknown)) == [0, 1]
    assert wanted.front_choice(unknown).admits(unknown[0]), "a metric that no trial has guards nothing"


def test_a_guard_of_the_caller_stays() -> None:
    given = Preference(guard={"accuracy": at_least("best-50%")})
    assert objective(given).prefer is given


def test_a_preference_round_trips_through_json() -> None:
    wanted = objective("accuracy=2,latency_s=1", size=3.0)
    assert Objective.from_json(json.loads(json.dumps(wanted.to_json()))) == wanted
    plain = Objective("accuracy", "latency_s")
    assert "prefer" not in plain.to_json()
    assert Objective.from_json(plain.to_json()) == plain


@pytest.mark.parametrize(
    ("prefer", "message"),
    [
        ("latency", "did you mean 'latency_s'"),
        ("accuracy=much", "is not a preference"),
        ("accuracy,accuracy", "is not a preference"),
        ("accuracy=-1", "0 or more"),
        ("accuracy=0", "above 0"),
        ({"accuracy": True}, "must be a number"),
    ],
)
def test_an_invalid_preference_is_refused(prefer: dict[str, float] | str, message: str) -> None:
    with pytest.raises(ObjectiveError, match=message):
        objective(prefer)


@pytest.mark.parametrize("prefer", ["accuracy", {"accuracy": 1.0}, Preference(guard={})])
def test_one_goal_leaves_nothing_to_prefer(prefer: Preference | dict[str, float] | str) -> None:
    with pytest.raises(ObjectiveError, match="several goals, and accuracy is the only one; leave them out, or add a"):
        Objective("accuracy", prefer=prefer)
    assert Objective("accuracy").guarded("accuracy", maximize=True) == Objective("accuracy")
    stored = {**Objective("accuracy").to_json(), "prefer": {"weights": {"accuracy": 1.0}, "guard": None}}
    assert Objective.from_json(stored) == Objective("accuracy"), "a store of an earlier version opens"


@pytest.mark.parametrize("guard", [{"accuracy": "best-10%"}, {"accuracy": 0.9}])
def test_a_guard_consists_of_bounds(guard: Any) -> None:
    with pytest.raises(ObjectiveError, match="must be a bound such as at_least"):
        Preference(guard=guard)


@pytest.mark.parametrize("given", [["accuracy"], 3])
def test_a_preference_of_another_type_is_rejected(given: Any) -> None:
    with pytest.raises(ObjectiveError, match="a preference is a goal"):
        preference(given)
