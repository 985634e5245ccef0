"""Arithmetic over recorded metrics: `(train_time_s + latency_s) / accuracy`.

Numbers, + - * / **, parentheses, min, max, log, sqrt and abs. A metric of one of several devices is qualified by the
device, `latency_s@raspberry-pi-4`; put spaces around a minus sign after it. The rules of retraining use rule-engine
instead, whose language has comparisons, strings and dates, which arithmetic over metrics must not have.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache

from onefold.vocabulary.errors import ObjectiveError

PLAIN = re.compile(r"[A-Za-z_]\w*(@[A-Za-z0-9][\w.-]*)?")
_AT_DEVICE = re.compile(r"([A-Za-z_]\w*)@([A-Za-z0-9](?:[\w.-]*\w)?)")
_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "log": math.log,
    "sqrt": math.sqrt,
    "abs": abs,
}
_LEAST_MOST = {"min": (2, 99), "max": (2, 99), "log": (1, 2), "sqrt": (1, 1), "abs": (1, 1)}  # arguments


def is_plain(text: str) -> bool:
    """Return whether `text` is just the name of a metric."""
    return PLAIN.fullmatch(text) is not None


def names(text: str) -> tuple[str, ...]:
    """Return the metrics that an expression uses; raise ObjectiveError if `text` is not an expression."""
    tree, spelled = _parsed(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    return tuple(dict.fromkeys(spelled.get(name, name) for name in names))


def value(text: str, metrics: Mapping[str, float]) -> float:
    """Return the value of an expression; NaN if it is undefined (a division by zero, the root of -1)."""
    tree, spelled = _parsed(text)
    try:
        return float(_value(tree, {**metrics, **{short: metrics[full] for short, full in spelled.items()}}))
    except (ArithmeticError, ValueError, TypeError):  # TypeError: an operation on a complex intermediate result
        return math.nan


@cache
def _parsed(text: str) -> tuple[ast.expr, dict[str, str]]:
    spelled: dict[str, str] = {}

    def short(match: re.Match[str]) -> str:
        name = f"_at_{len(spelled)}"
        spelled[name] = match[0]
        return name

    try:
        tree = ast.parse(_AT_DEVICE.sub(short, text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ObjectiveError(
            f"{text!r} is not an expression; write, for example, (train_time_s + latency_s) / accuracy"
        ) from None
    for node in ast.walk(tree):
        _check(node, text)
    return tree, spelled


def _check(node: ast.AST, text: str) -> None:
    is_allowed = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, *_OPERATORS))
    is_allowed = is_allowed or (isinstance(node, ast.Constant) and isinstance(node.value, (int, float)))
    if isinstance(node, ast.Call):
        is_allowed = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        if is_allowed:
            _check_arguments(node.func.id, len(node.args), text)  # type: ignore[attr-defined]
    if not is_allowed:
        raise ObjectiveError(f"{text!r} is not plain arithmetic; use + - * / **, parentheses, {', '.join(_FUNCTIONS)}")


def _check_arguments(function: str, given: int, text: str) -> None:
    least, most = _LEAST_MOST[function]
    if not least <= given <= most:
        wanted = f"{least}" if least == most else f"{least} or more" if most > 2 else f"{least} or {most}"
        raise ObjectiveError(f"in {text!r}, {function} takes {wanted} arguments, got {given}")


def _value(node: ast.expr, metrics: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return metrics[node.id]
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, metrics))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, metrics), _value(node.right, metrics))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _FUNCTIONS[node.func.id](*(_value(argument, metrics) for argument in node.args))
    raise ObjectiveError("an expression may only contain arithmetic")
