from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.requirement import Bound, at_least, at_most, check_fraction, requirement

NUMBERS = st.integers(-4, 4).map(float) | st.floats(-10, 10)
NEAR_BEST = Objective(minimize="parameters", require={"accuracy": at_least("best-0.01")})


@given(NUMBERS, NUMBERS)
def test_a_violation_is_relative_to_the_bound(limit, value):
    assert (at_least(limit).violation(value) == 0) == (value >= limit)
    assert (at_most(limit).violation(value) == 0) == (value <= limit)
    missed = at_least(limit).violation(value) + at_most(limit).violation(value)
    assert missed == pytest.approx(abs(value - limit) / (abs(limit) or 1))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("encoded_bytes<=200kB", 200_000),
        ("encoded_bytes<=2e5", 200_000),
        ("latency_s@pi <= 2 ms", 0.002),
        ("latency_s<=1e-4", 1e-4),
        ("throughput_per_s>=100", 100),
    ],
)
def test_limits_may_have_the_unit_of_their_metric(text, limit):
    assert requirement(text)[1].limit == limit


def test_a_limit_with_another_unit_is_rejected():
    for text in ("latency_s<=2kB", "throughput_per_s>=100ms", "accuracy>=high", "latency<=inf ms"):
        with pytest.raises(ObjectiveError, match="not the limit of a requirement"):
            requirement(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [("latency<=3ms", "did you mean 'latency_s'"), ("size<=2MB", "known: encoded_bytes"), ("accuracy>=9kB", "known")],
)
def test_a_unit_needs_a_metric_whose_name_says_it(text: str, hint: str) -> None:
    with pytest.raises(ObjectiveError, match=f"has a unit, and the name of the metric .* says none; {hint}"):
        requirement(text)
    assert requirement("latency<=3") == ("latency", at_most(3))


@pytest.mark.parametrize("bound", [at_least(0.9), at_least(1), at_least("best-0.1"), at_least("best-10%"), at_most(0)])
def test_bounds_within_an_accuracy_are_accepted(bound: Bound) -> None:
    check_fraction("accuracy", bound)


def test_nan_violates_every_bound():
    assert at_least(0.5).violation(math.nan) > 0
    assert at_most(0.5).violation(math.nan) > 0


@given(
    st.sampled_from((">=", "<=")), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(("", " ", "  "))
)
def test_requirements_are_parsed(sign, limit, space):
    assert requirement(f"{space}accuracy{space}{sign}{space}{limit!r}{space}") == (
        "accuracy",
        Bound(limit, sign == ">="),
    )


@pytest.mark.parametrize(
    "text",
    [
        "accuracy",
        "accuracy>0.9",
        "accuracy>=",
        ">=0.9",
        "accuracy>=high",
        "accuracy>=1.2.3",
        "accuracy>=nan",
        "a b>=1",
        "2x<=1",
    ],
)
def test_an_invalid_requirement_is_rejected_with_an_example(text):
    with pytest.raises(ObjectiveError, match=r"for example, accuracy>=0\.9"):
        requirement(text)


def test_a_bound_can_be_counted_from_the_best():
    assert requirement("accuracy>=best-0.01") == ("accuracy", at_least("best-0.01"))
    assert requirement("loss <= best + 1e-2") == ("loss", at_most("best+0.01"))
    assert requirement("loss<=best") == ("loss", Bound(at_least=False, from_best=0.0))
    assert [str(at_least("best-0.01")), str(at_most("best+2")), str(at_most("best"))] == [
        ">=best-0.01",
        "<=best+2",
        "<=best",
    ]


def test_a_bound_can_be_a_share_of_the_best():
    metric, bound = requirement("accuracy >= best - 5%")
    assert (metric, bound, str(bound)) == ("accuracy", at_least("best-5%"), ">=best-5%")
    assert bound.settled([0.5, 0.8]).limit == pytest.approx(0.76)
    assert at_most("best+10%").settled([-2.0, 4.0]).limit == pytest.approx(-1.8)
    assert Bound(**bound.to_json()) == bound
    assert "is_share" not in at_least("best-0.05").to_json()


@pytest.mark.parametrize("text", ["accuracy>=best+0.01", "loss<=best-0.01"])
def test_a_bound_beyond_the_best_is_refused(text):
    with pytest.raises(ObjectiveError, match="no result can be better than the best"):
        requirement(text)


@pytest.mark.parametrize("limit", ["best-100%", "best-500%"])
def test_a_share_below_the_best_is_less_than_all_of_it(limit):
    with pytest.raises(ObjectiveError, match=f"a share of the best must be below 100%, got >={limit}"):
        requirement(f"accuracy>={limit}")
    assert requirement(f"latency_s<={limit.replace('-', '+')}")[1].settled([2.0]).limit >= 4.0


@given(st.lists(NUMBERS, min_size=1), st.floats(0, 3))
def test_the_best_always_keeps_a_bound_that_is_counted_from_it(values, room):
    for bound, best in ((at_least(f"best-{room!r}"), max(values)), (at_most(f"best+{room!r}"), min(values))):
        assert bound.is_open
        assert bound.violation(values[0]) == 0, "each result is the best one so far"
        settled = bound.settled(values)
        assert settled.violation(best) == 0
        assert settled.settled([*values, 1e9, -1e9]) == settled, "what is settled stays"
        assert str(settled) == str(bound)


def test_only_numbers_settle_a_bound():
    assert at_least("best-1").settled([math.nan, math.inf]).is_open
    assert at_least("best-1").settled([]).is_open
    assert at_least("best-1").violation(math.nan) > 0


def test_results_within_the_bound_come_first_in_order_of_the_goal():
    results = [
        {"accuracy": 0.900, "parameters": 900.0},
        {"accuracy": 0.893, "parameters": 300.0},
        {"accuracy": 0.880, "parameters": 100.0},
        {"accuracy": 0.891, "parameters": 500.0},
    ]
    assert NEAR_BEST.order(results) == [1, 3, 0, 2]
    assert NEAR_BEST.front(results) == [1]


def test_of_equal_results_the_one_further_inside_its_bounds_comes_first():
    results = [{"accuracy": accuracy, "parameters": 10.0} for accuracy in (0.895, 0.9, 0.5)]
    assert NEAR_BEST.order(results) == [1, 0, 2]


def test_an_unsettled_bound_round_trips_through_json():
    settled = NEAR_BEST.settled([{"accuracy": 0.9, "parameters": 1.0}])
    assert settled.require["accuracy"].limit == pytest.approx(0.89)
    assert Objective.from_json(json.loads(json.dumps(settled.to_json()))) == NEAR_BEST
