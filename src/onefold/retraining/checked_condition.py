"""Conditions of the user's rules: `rule_engine` expressions, type-checked when they are read.

Importing rule_engine takes a quarter of a second, so only a retraining with a rule file does.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

import rule_engine  # type: ignore[import-untyped]

from onefold.retraining.rules import TYPE_NAMES, Fact

_BINARY = {
    "LogicExpression",
    "ComparisonExpression",
    "ArithmeticComparisonExpression",
    "ArithmeticExpression",
    "AddExpression",
    "SubtractExpression",
}
_LEAVES = {"SymbolExpression", "FloatExpression", "StringExpression", "BooleanExpression"}
_MIXED_TYPES = "mixes types; compare numbers with numbers and quoted strings with strings"
_UNSUPPORTED = (
    "may only use facts, numbers, strings, true, false, + - * / // % **, comparisons, in [ ], and, or, not and ( )"
)
_NOT_BOOLEAN = "joins values that are not boolean by and, or, not; write `lr > 1 or lr < 0`, not `lr > 1 or 0`"
# Comparisons with nan are false, as everywhere else; a division by zero ends the evaluation of a rule.
_ARITHMETIC = decimal.Context(traps=[decimal.DivisionByZero, decimal.Overflow])


class ConditionError(ValueError):
    """A condition that cannot be used; `unknown` is the fact that it refers to and that does not exist."""

    def __init__(self, problem: str, unknown: str = "") -> None:
        super().__init__(problem)
        self.unknown = unknown


class CheckedCondition:
    """A condition over facts of known types."""

    def __init__(self, when: str, facts: Mapping[str, type[Fact]]) -> None:
        """Parse with the types of the facts, so that mistakes show here and not during a retraining.

        Raises:
            ConditionError: The condition is invalid.
        """
        self._rule = _parsed(when, facts)

    def matches(self, facts: Mapping[str, Fact]) -> bool:
        """Return whether the condition is true; raises ArithmeticError if it cannot be evaluated with these facts."""
        try:
            return bool(self._rule.matches(facts))
        except rule_engine.EngineError as error:
            raise ArithmeticError(str(error)) from error


def _parsed(when: str, facts: Mapping[str, type[Fact]]) -> rule_engine.Rule:
    types = rule_engine.type_resolver_from_dict(
        {fact: rule_engine.DataType.from_type(fact_type) for fact, fact_type in facts.items()}
    )
    context = rule_engine.Context(type_resolver=types, default_timezone="utc", decimal_context=_ARITHMETIC)
    try:
        rule = rule_engine.Rule(when, context)
        problem = _type_problem(rule.statement.expression)
        if not problem and rule.statement.expression.result_type.name != "BOOLEAN":
            problem = "is not boolean; compare it with something, such as updates < 20"
    except rule_engine.RuleSyntaxError as error:
        where = "at its end" if error.token is None else f"at {shorten(when[error.token.lexpos :], 40)!r}"
        problem = f"has a syntax error {where}; an example is: updates < 20 and effective_batch > 16"
    except rule_engine.SymbolResolutionError as error:
        raise ConditionError("refers to an unknown fact", error.symbol_name) from error
    except rule_engine.EngineError as error:
        problem = _MIXED_TYPES if "data type mismatch" in error.message else f"cannot be evaluated: {error.message}"
    except RecursionError:
        problem = "is nested too deeply; split it into two rules"
    except (ArithmeticError, TypeError, ValueError) as error:
        problem = f"cannot be evaluated: {error}"
    if problem == _MIXED_TYPES:
        used = [f"{fact} is {TYPE_NAMES[facts[fact]]}" for fact in sorted(context.symbols & facts.keys())]
        problem += f" ({', '.join(used)})" if used else ""
    if problem:
        raise ConditionError(problem)
    return rule


def _type_problem(expression: Any) -> str:
    """Return a type error that rule_engine would only raise on evaluation; empty if there is none."""
    operands = _operands(expression)
    if operands is None:
        return _UNSUPPORTED
    for operand in operands:
        if problem := _type_problem(operand):
            return problem
    types = {operand.result_type.name for operand in operands}
    operation = getattr(expression, "type", "")
    if operation in ("and", "or", "not") and types != {"BOOLEAN"}:
        return _NOT_BOOLEAN
    return _MIXED_TYPES if len(types) > 1 or (operation == "uminus" and types != {"FLOAT"}) else ""


def _operands(expression: Any) -> list[Any] | None:
    """Return the operands of an expression; None for one that rules do not support: functions, dates, patterns, …"""
    match type(expression).__name__:
        case name if name in _BINARY:
            return [expression.left, expression.right]
        case "UnaryExpression":
            return [expression.right]
        case "ContainsExpression":
            container = expression.container
            is_list = type(container).__name__ == "ArrayExpression"
            return [expression.member, *(container.value if is_list else [container])]
        case name if name in _LEAVES and not getattr(expression, "scope", None):
            return []
    return None
