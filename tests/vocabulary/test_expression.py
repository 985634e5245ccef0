"""Expressions over metrics, and objectives over them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.expression import is_plain, names, value
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ratios import RATIOS
from onefold.vocabulary.requirement import Bound, at_least, at_most, requirement

PROPERTIES = {"accuracy": 0.9, "loss": 0.25, "train_time_s": 12.0, "latency_s": 0.004, "zero": 0.0, "minus": -2.0}
numbers = st.sampled_from(("0", "1", "2.5", "0.125", "1e3", "3"))
leaves = numbers | st.sampled_from(sorted(PROPERTIES))
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(("+", "-", "*", "/", "**")), inner),
        st.builds("({}{})".format, st.sampled_from("-+"), inner),
        st.builds("{}({})".format, st.sampled_from(("sqrt", "log", "abs")), inner),
        st.builds("{}({}, {})".format, st.sampled_from(("min", "max")), inner, inner),
    ),
    max_leaves=8,
)
FUNCTIONS = {"min": min, "max": max, "log": math.log, "sqrt": math.sqrt, "abs": abs}


def by_python(text: str) -> float:
    """Evaluate an expression by Python, with all numbers as floats; NaN if it raises."""
    try:
        numbers_as_floats = {**FUNCTIONS, **{name: float(number) for name, number in PROPERTIES.items()}}
        result = eval(text, {"__builtins__": {}}, numbers_as_floats)
        return math.nan if isinstance(result, complex) else float(result)
    except (ArithmeticError, ValueError, TypeError):
        return math.nan


@given(expressions)
def test_arithmetic_is_pythons(text: str) -> None:
    result, wanted = value(text, PROPERTIES), by_python(text)
    assert result == pytest.approx(wanted, rel=1e-12, nan_ok=True)


@given(expressions)
def test_names_are_the_metrics_of_the_expression(text: str) -> None:
    needed = names(text)
    assert len(set(needed)) == len(needed)
    assert all(name in text for name in needed)
    value(text, {name: PROPERTIES[name] for name in needed})


@pytest.mark.parametrize(
    "text",
    [
        "accuracy.real", "().__class__", "open('x')", "__import__('os')", "'text'", "b'x'", "1j", "None", "...",
        "lambda: 1", "[x for x in y]", "{x for x in y}", "(x for x in y)", "{a: b}", "[a]", "a[0]", "(a, b)",
        "a if b else c", "a < b", "a and b", "not a", "~a", "a // b", "a % b", "a @ b", "a & b", "a << 2", "f'{a}'",
        "(a := 1)", "min(*a)", "min(a, key=b)", "eval(a)", "min(a, b).real", "await a", "log(a)(b)",
    ],
)  # fmt: skip
def test_anything_but_arithmetic_is_rejected(text: str) -> None:
    with pytest.raises(ObjectiveError, match=r"not plain arithmetic; use|not an expression; write|takes 2 or more"):
        names(text)


@pytest.mark.parametrize("text", ["", "a +", "a b", "(a", "1 = 2", "a; b", "import os", "-" * 5000 + "a", "\0"])
def test_invalid_syntax_is_rejected(text: str) -> None:
    with pytest.raises(ObjectiveError, match="is not an expression; write"):
        names(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("min(a)", "min takes 2 or more arguments, got 1"),
        ("sqrt(a, b)", "sqrt takes 1 arguments, got 2"),
        ("log()", "log takes 1 or 2 arguments, got 0"),
    ],
)
def test_functions_check_their_number_of_arguments(text: str, complaint: str) -> None:
    with pytest.raises(ObjectiveError, match=complaint):
        names(text)


@pytest.mark.parametrize("text", ["1 / zero", "zero / zero", "log(zero)", "sqrt(minus)", "minus ** 0.5", "10 ** 1000"])
def test_an_undefined_value_is_nan(text: str) -> None:
    assert math.isnan(value(text, PROPERTIES))


def test_a_property_may_be_called_like_a_function() -> None:
    assert names("max + min(max, 2)") == ("max",)
    assert value("max + min(max, 2)", {"max": 3.0}) == 5.0


class TestDevices:
    PI, BOARD = "latency_s@raspberry-pi-4", "latency_s@my.board_2"

    def test_names_have_their_device(self) -> None:
        assert set(names(f"{self.PI} + 2 * {self.BOARD} / accuracy")) == {self.PI, self.BOARD, "accuracy"}
        assert is_plain(self.PI)
        assert not is_plain(f"{self.PI} + 1")

    def test_values_are_those_of_the_device(self) -> None:
        known = {self.PI: 3.0, self.BOARD: 0.5, "latency_s": 100.0}
        assert value(f"{self.PI} - {self.BOARD} * 2", known) == 2.0
        assert value(f"max({self.PI}, {self.BOARD})", known) == 3.0
        assert value(f"({self.PI}) / ({self.PI})", known) == 1.0

    def test_a_minus_with_spaces_is_no_part_of_the_name(self) -> None:
        assert names("latency_s@pi-4 - loss") == ("latency_s@pi-4", "loss")


class TestObjectives:
    def test_expressions_are_completed_under_their_own_text(self) -> None:
        objective = Objective(minimize="loss / accuracy", require={"latency_s * 1000": at_most(5)})
        result = objective.completed(PROPERTIES)
        assert result == {**PROPERTIES, "loss / accuracy": 0.25 / 0.9, "latency_s * 1000": 4.0}
        assert objective.violation(result) == 0
        assert objective.losses(result) == (0.25 / 0.9,)

    def test_expressions_with_missing_metrics_are_left_out(self) -> None:
        objective = Objective(minimize="(train_time_s + latency_s) / accuracy", maximize="accuracy")
        early = {"accuracy": 0.5, "train_time_s": 1.0}
        assert objective.completed(early) is early

    def test_a_reported_metric_of_that_name_takes_precedence(self) -> None:
        objective = Objective(minimize="loss / accuracy")
        assert objective.completed({"loss / accuracy": 7.0, "loss": 1.0, "accuracy": 1.0})["loss / accuracy"] == 7.0

    def test_inputs_are_what_expressions_name(self) -> None:
        objective = Objective(minimize=("time_ratio", "loss"), require={"latency_s@pi-4 / accuracy": at_most(1)})
        named = {"train_time_s", "served_samples", "latency_s", "accuracy", "loss", "latency_s@pi-4"}
        assert set(objective.inputs) == named
        assert len(objective.inputs) == 6

    @pytest.mark.parametrize("name", sorted(RATIOS))
    def test_ratios_have_names(self, name: str) -> None:
        known = {**PROPERTIES, "energy_j": 50.0, "energy_per_sample_j": 0.5, "served_samples": 1000.0}
        objective = Objective(minimize=name)
        objective.check(known)
        paid = {"time_ratio": 12.0 + 4.0, "energy_ratio": 50.0 + 500.0}[name]
        assert objective.completed(known)[name] == pytest.approx(paid / 0.9)
        over_loss = objective.with_ratios_over("loss", maximize=False)
        assert over_loss.completed(known)[name] == pytest.approx(paid * 0.25)
        assert Objective.from_json(over_loss.to_json()) == over_loss

    def test_ratio_over_a_metric_that_is_not_above_0_is_undefined(self) -> None:
        objective = Objective(minimize="time_ratio").with_ratios_over("r2", maximize=True)
        known = {"r2": -0.1, "train_time_s": 1.0, "latency_s": 1.0, "served_samples": 1.0}
        assert math.isnan(objective.completed(known)["time_ratio"])
        with pytest.raises(ObjectiveError, match=r"the workload's own is 'top-1 \(%\)'; report it as one"):
            objective.with_ratios_over("top-1 (%)", maximize=True)

    def test_stored_studies_keep_their_ratio(self) -> None:
        stored = Objective(minimize="time_ratio").to_json()
        del stored["formulas"]
        known = {"accuracy": 0.5, "train_time_s": 1.0, "latency_s": 1.0}
        assert Objective.from_json(stored).completed(known)["time_ratio"] == 4.0

    def test_the_check_names_the_property_that_is_missing(self) -> None:
        Objective(minimize="loss / accuracy").check(PROPERTIES)
        with pytest.raises(ObjectiveError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
            Objective(minimize="loss / acuracy").check(PROPERTIES)
        with pytest.raises(ObjectiveError, match="energy_j"):
            Objective(minimize="energy_ratio").check(PROPERTIES)

    def test_an_invalid_expression_is_rejected_at_once(self) -> None:
        with pytest.raises(ObjectiveError, match="is not an expression"):
            Objective(minimize="(loss / accuracy")
        with pytest.raises(ObjectiveError, match="not plain arithmetic"):
            Objective(maximize="accuracy", require={"eval(loss)": at_least(0)})

    def test_a_metric_with_an_odd_name_is_still_a_metric(self) -> None:
        objective = Objective(minimize="val loss")
        assert objective.inputs == ("val loss",)
        objective.check({"val loss"})
        assert objective.completed({"other": 1.0}) == {"other": 1.0}
        with pytest.raises(ObjectiveError, match="did you mean 'val loss'"):
            Objective(minimize="val los").check({"val loss"})

    def test_requirements_bound_expressions_and_devices(self) -> None:
        assert requirement("latency_s * 1000 <= 5") == ("latency_s * 1000", Bound(5, at_least=False))
        assert requirement("latency_s@raspberry-pi-4<=0.03") == ("latency_s@raspberry-pi-4", at_most(0.03))
        assert requirement("(accuracy - loss)>=-1e-2") == ("(accuracy - loss)", at_least(-0.01))
        for wrong in ("eval(x)>=1", "1<=2", "a +<=2", "accuracy.real>=1"):
            with pytest.raises(ObjectiveError, match="is not a requirement"):
                requirement(wrong)
