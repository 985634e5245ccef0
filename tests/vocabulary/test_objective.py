from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.vocabulary.budget import Budget, BudgetUse
from onefold.vocabulary.errors import BudgetError, ObjectiveError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.pareto import dominates, fronts, spread
from onefold.vocabulary.preference import Preference
from onefold.vocabulary.requirement import Bound, at_least, at_most

NUMBERS = st.integers(-4, 4).map(float) | st.floats(-10, 10)
METRICS = st.fixed_dictionaries({"loss": NUMBERS, "time": NUMBERS, "accuracy": NUMBERS})
LOSSES = st.integers(1, 3).flatmap(lambda goals: st.lists(st.tuples(*[NUMBERS] * goals), max_size=12))
BUDGETS = st.builds(
    lambda kind, growth, fresh, epochs, more, data, time_s, longer, eta: Budget(
        kind=kind,
        growth=growth,
        fresh=fresh,
        min_epochs=epochs,
        max_epochs=epochs + more,
        min_data=data,
        min_time_s=time_s,
        max_time_s=time_s * longer,
        eta=eta,
    ),
    st.sampled_from(("multi", "epochs", "data", "time")),
    st.sampled_from(("geometric", "linear")),
    st.booleans(),
    st.integers(1, 5),
    st.integers(0, 100),
    st.integers(1, 200).map(lambda parts: 1 / parts) | st.floats(0.01, 1),
    st.floats(0.1, 100),
    st.integers(1, 50) | st.floats(1, 50),
    st.integers(2, 5),
)


@given(LOSSES)
def test_fronts_are_what_remains_undominated(losses):
    result = fronts(losses)
    assert sorted(i for front in result for i in front) == list(range(len(losses)))
    for depth, front in enumerate(result):
        assert front
        rest = [i for later in result[depth:] for i in later]
        for i in rest:
            beaten = any(
                all(a <= b for a, b in zip(losses[j], losses[i])) and losses[j] != losses[i] for j in rest if j != i
            )
            assert beaten == (i not in front)


@given(LOSSES)
def test_domination_is_an_order(losses):
    for item in losses:
        assert not dominates(item, item)
        for other in losses:
            assert not (dominates(item, other) and dominates(other, item))


@given(LOSSES)
def test_a_front_is_spread_over_all_its_members(losses):
    front = [losses[i] for i in fronts(losses)[0]] if losses else []
    order = list(spread(front))
    assert sorted(order) == list(range(len(front)))
    if front:
        assert next(iter(spread(front, len(front) - 1))) == len(front) - 1


def test_extremes_of_cheap_goals_are_promoted_after_good_results():
    objective = Objective("accuracy", ("latency_s", "size"), prefer=Preference(guard={"accuracy": at_least("best-5%")}))
    points = [(0.783, 6.89, 13.3), (0.195, 9.24, 0.465), (0.883, 9.28, 4.42), (0.825, 6.92, 8.91)]
    results = [dict(zip(objective.metrics, point)) for point in points]
    assert objective.order(results)[:2] == [2, 3]
    assert objective.order_of_preference(results)[0] == 2


@given(st.lists(METRICS, max_size=10))
def test_with_one_goal_feasible_results_come_first_in_order_of_the_goal(results):
    objective = Objective(maximize="accuracy", require={"time": at_most(1.0)})
    order = objective.order(results)
    assert sorted(order) == list(range(len(results)))
    for before, after in pairwise(order):
        one, other = results[before], results[after]
        if objective.violation(one) == objective.violation(other):
            # Of equals those with more room inside their bounds come first, then those that were first before.
            pair = ((before, one), (after, other))
            keys = [(-metrics["accuracy"], -objective.margin(metrics), i) for i, metrics in pair]
            assert keys == sorted(keys)
        else:
            assert objective.violation(one) < objective.violation(other)


@pytest.mark.parametrize("order", ["order", "order_of_preference"])
@given(results=st.lists(METRICS, max_size=10))
def test_several_goals_order_by_front(order, results):
    objective = Objective(maximize="accuracy", minimize="loss", require={"time": at_most(1.0)})
    order = getattr(objective, order)(results)
    assert sorted(order) == list(range(len(results)))
    able = [i for i in range(len(results)) if results[i]["time"] <= 1]
    assert set(order[: len(able)]) == set(able), "what keeps the requirements comes first"
    missed = [objective.violation(results[i]) for i in order[len(able) :]]
    assert missed == sorted(missed)
    losses = {i: (-results[i]["accuracy"], results[i]["loss"]) for i in able}
    depth = {able[i]: d for d, front in enumerate(fronts([losses[i] for i in able])) for i in front}
    assert [depth[i] for i in order[: len(able)]] == sorted(depth.values())
    assert set(objective.front(results)) == {i for i in able if depth[i] == 0}


@given(st.lists(METRICS, min_size=1, max_size=10))
def test_the_front_of_one_goal_is_its_best(results):
    objective = Objective(minimize="loss")
    best = min(metrics["loss"] for metrics in results)
    assert objective.front(results) == [i for i, metrics in enumerate(results) if metrics["loss"] == best]


@given(METRICS, st.sampled_from((">=", "<=")), st.floats(allow_nan=False, allow_infinity=False))
def test_an_objective_round_trips_through_json(metrics, sign, limit):
    objective = Objective(
        maximize="accuracy", minimize=("loss", "time"), require={"time": Bound(limit, at_least=sign == ">=")}
    )
    back = Objective.from_json(json.loads(json.dumps(objective.to_json())))
    assert back == objective
    assert back.losses(metrics) == objective.losses(metrics) == (-metrics["accuracy"], metrics["loss"], metrics["time"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Objective(), "needs a metric"),
        (lambda: Objective(maximize="loss", minimize="loss"), "can be a goal only once"),
        (
            lambda: Objective(minimize="value").check(["loss"]),
            "give a goal, such as objective=Objective",
        ),
        (lambda: Objective(maximize="acuracy").check(["accuracy", "loss"]), "did you mean 'accuracy'"),
        (
            lambda: Objective(maximize="loss", require={"size": at_most(1)}).check(["loss"]),
            "unknown metric 'size'",
        ),
    ],
)
def test_an_invalid_objective_is_rejected(make, message):
    with pytest.raises(ObjectiveError, match=message):
        make()


def test_an_objective_is_formatted():
    objective = Objective(maximize="accuracy", minimize="time", require={"size": at_most(100)})
    assert str(objective) == "highest accuracy, lowest time with size<=100"
    assert objective.metrics == ("accuracy", "time", "size")


@given(BUDGETS, st.integers(1, 60), st.integers(1, 4))
def test_a_grant_follows_the_formula(budget, level, visit):
    grant = budget.grant(level, visit)
    epochs = min(budget.min_epochs * level, budget.max_epochs)
    top = level >= budget.top_level  # the top level grants everything
    data = pytest.approx(1.0 if top else min(budget.min_data * level, 1.0))
    assert grant.level == level
    assert grant.fresh == budget.fresh
    if budget.kind == "multi":
        assert (grant.epochs, grant.data, grant.time_s) == (epochs, data, None)
    elif budget.kind == "epochs":
        assert (grant.epochs, grant.data, grant.time_s) == (epochs, 1.0, None)
    elif budget.kind == "data":
        each = budget.min_epochs
        assert (grant.epochs, grant.data, grant.time_s) == (
            each if budget.fresh else min(each * visit, budget.max_epochs),
            data,
            None,
        )
    else:
        assert grant.time_s == pytest.approx(min(budget.min_time_s * level, budget.max_time_s))
        assert (grant.epochs, grant.data) == (budget.max_epochs, 1.0)


@given(BUDGETS, st.none() | st.integers(1, 6))
def test_levels_rise_to_the_full_budget(budget, most):
    levels = budget.levels(most)
    assert levels[-1] == budget.top_level
    assert list(levels) == sorted(set(levels))
    assert levels[0] >= 1
    assert most is None or len(levels) <= most
    if budget.growth == "linear" and most is None:
        assert levels == tuple(range(1, budget.top_level + 1))
    if budget.growth == "geometric":
        assert levels[::-1] == tuple(round(budget.top_level / budget.eta**step) for step in range(len(levels)))


@given(BUDGETS)
def test_the_top_level_is_the_first_that_grants_everything(budget):
    def everything(level):
        grant = budget.grant(level)
        if budget.kind == "time":
            return grant.time_s >= budget.max_time_s * (1 - 1e-9)
        return (grant.epochs == budget.max_epochs or budget.kind == "data") and grant.data == 1.0

    top = budget.top_level
    assert everything(top)
    assert top == 1 or not everything(top - 1)


@given(BUDGETS)
def test_no_rung_grants_less_than_the_one_before(budget):
    grants = [budget.grant(level, visit) for visit, level in enumerate(budget.levels(), start=1)]
    for before, after in pairwise(grants):
        assert after.level > before.level
        assert after.epochs >= before.epochs
        assert after.data >= before.data
        assert (after.time_s or 0) >= (before.time_s or 0)


def test_the_default_budget_is_the_one_of_the_tutorial():
    budget = Budget()
    assert budget.levels() == (1, 2, 4, 9)
    assert [(g.epochs, round(g.data, 3)) for g in map(budget.grant, budget.levels())] == [
        (1, 1.0),
        (2, 1.0),
        (4, 1.0),
        (9, 1.0),
    ]
    assert budget.levels(2) == (4, 9)
    assert Budget(growth="linear", max_epochs=4, min_data=0.25).levels() == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trials": 0}, "trials must be 1 or more, got 0"),
        ({"minutes": 0}, "minutes must be above 0"),
        ({"joules": -1.0}, "joules must be above 0"),
        ({"kind": "epoch"}, "did you mean 'epochs'"),
        ({"growth": "linea"}, "did you mean 'linear'"),
        ({"min_epochs": 5, "max_epochs": 3}, "min_epochs must not exceed max_epochs, got 5 and 3"),
        ({"min_time_s": 9.0, "max_time_s": 3.0}, "min_time_s must not exceed"),
        ({"min_data": 0.0}, "at most 1"),
        ({"min_data": 1.5}, "at most 1"),
        ({"eta": 1}, "eta must be 2 or more"),
    ],
)
def test_an_invalid_budget_is_rejected(wrong, message):
    with pytest.raises(BudgetError, match=message):
        Budget(**wrong)


def test_a_study_stops_at_the_first_limit():
    objective = Objective(maximize="accuracy", require={"size": at_most(10)})
    budget = Budget(minutes=2, joules=50, target=0.9)
    assert BudgetUse(time_s=119, joules=49).reason_to_stop(budget, objective) is None
    assert "2 minutes" in BudgetUse(time_s=120).reason_to_stop(budget, objective)
    assert "limit of 0.593 minutes" in BudgetUse(time_s=60).reason_to_stop(Budget(minutes=0.592991), objective)
    assert "50 J" in BudgetUse(joules=50).reason_to_stop(budget, objective)
    assert BudgetUse(joules=None).reason_to_stop(budget, objective) is None
    assert "target accuracy 0.9" in BudgetUse(best={"accuracy": 0.9, "size": 1}).reason_to_stop(budget, objective)
    assert BudgetUse(best={"accuracy": 0.89, "size": 1}).reason_to_stop(budget, objective) is None
    assert BudgetUse(best={"accuracy": 0.95, "size": 11}).reason_to_stop(budget, objective) is None
    assert BudgetUse(time_s=1e9).reason_to_stop(Budget(), objective) is None
