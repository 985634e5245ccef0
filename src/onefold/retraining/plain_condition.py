"""Conditions of the shipped rules: a part of the language of `rule_engine` that is also Python.

Facts, numbers, strings, true and false, + - * /, comparisons, and, or, not.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from onefold.retraining.rules import Fact

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NODES = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Name, ast.Constant, ast.Load)
_LITERALS = {"true": True, "false": False}


class PlainCondition:
    """A condition over facts."""

    def __init__(self, when: str) -> None:
        """Parse a condition; raises ValueError for anything but the language above."""
        self._expression = ast.parse(when, mode="eval").body
        for node in ast.walk(self._expression):
            if not isinstance(node, _NODES) and type(node) not in _OPERATORS:
                raise ValueError(f"a shipped rule has {type(node).__name__} in {when!r}")

    def matches(self, facts: Mapping[str, Fact]) -> bool:
        """Return whether the condition is true; raises ArithmeticError if it cannot be evaluated with these facts."""
        return bool(_value(self._expression, facts))


def _value(node: ast.expr, facts: Mapping[str, Fact]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return _LITERALS[node.id] if node.id in _LITERALS else facts[node.id]
        case ast.BoolOp(op=ast.And()):
            return all(_value(value, facts) for value in node.values)
        case ast.BoolOp():
            return any(_value(value, facts) for value in node.values)
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_value(node.operand, facts))
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, facts), _value(node.right, facts))
        case ast.Compare():
            values = [_value(value, facts) for value in (node.left, *node.comparators)]
            return all(
                _OPERATORS[type(compare)](left, right) for compare, left, right in zip(node.ops, values, values[1:])
            )
    raise ValueError(f"a condition cannot have {type(node).__name__}")
