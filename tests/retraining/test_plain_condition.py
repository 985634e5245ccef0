"""Conditions of the shipped rules mean the same with and without rule_engine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.retraining.checked_condition import CheckedCondition
from onefold.retraining.plain_condition import PlainCondition
from onefold.retraining.rule_file import read_rules
from onefold.retraining.rules import FACTS, Condition, Fact

RULES = read_rules()
SHIPPED = [("narrow", rule.when) for rule in RULES.narrow] + [("react", rule.when) for rule in RULES.react]
VALUES: dict[type[Fact], st.SearchStrategy[Fact]] = {
    float: st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 16.0, 20.0, 1e9, -1.0, float("nan"), float("inf")]),
    bool: st.booleans(),
    str: st.sampled_from(["adam", "sgd"]),
}


def holds(condition: Condition, facts: dict[str, Fact]) -> bool | None:
    try:
        return condition.matches(facts)
    except ArithmeticError:
        return None


@given(data=st.data(), rule=st.sampled_from(SHIPPED))
def test_shipped_conditions_agree_with_rule_engine(data: st.DataObject, rule: tuple[str, str]) -> None:
    kind, when = rule
    facts = {name: data.draw(VALUES[fact_type]) for name, fact_type in FACTS[kind].items()}
    expected = holds(CheckedCondition(when, FACTS[kind]), facts)
    assert bool(holds(PlainCondition(when), facts)) == bool(expected)


@pytest.mark.parametrize("when", ["lr.real > 1", "[lr] == [1]", "open('x')", "lr if true else 1"])
def test_other_python_is_rejected(when: str) -> None:
    with pytest.raises(ValueError, match="a shipped rule has"):
        PlainCondition(when)


def test_a_retraining_without_a_rule_file_does_not_import_what_it_does_not_need() -> None:
    script = (
        "import sys, onefold.cli.retrain_app, onefold.retraining.api, onefold.retraining.controller; "
        "from onefold.retraining.rule_file import read_rules; read_rules(); "
        "print(sorted({'rule_engine', 'sqlalchemy', 'alembic', 'onnx', 'onnxruntime', 'optuna', 'jinja2', 'sklearn'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_command_imports_torch_only_once_it_handles_signals() -> None:
    script = (
        "import sys, onefold.cli.retrain_app, onefold.retraining.api, onefold.retraining.options; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
