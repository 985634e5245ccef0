"""Arithmetic over recorded properties: `(train_time_s + latency_s) / accuracy`.

Numbers, + - * / **, parentheses, min, max, log, sqrt and abs. A property of one of several devices is written with its
device, `latency_s@raspberry-pi-4`; put spaces around a minus that follows it.
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
    """Whether it is just the name of a property."""
    return PLAIN.fullmatch(text) is not None


def names(text: str) -> tuple[str, ...]:
    """The properties that an expression is worked out from; raises ObjectiveError when it is not one."""
    tree, spelled = _parsed(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    return tuple(dict.fromkeys(spelled.get(name, name) for name in found))


def value(text: str, properties: Mapping[str, float]) -> float:
    """What it comes to; not a number where it cannot be worked out (a division by zero, the root of -1)."""
    tree, spelled = _parsed(text)
    try:
        return float(_value(tree, {**properties, **{short: properties[full] for short, full in spelled.items()}}))
    except (ArithmeticError, ValueError, TypeError):  # TypeError: what went on with a complex number
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
            f"{text!r} is not an expression; it reads like (train_time_s + latency_s) / accuracy"
        ) from None
    for node in ast.walk(tree):
        _check(node, text)
    return tree, spelled


def _check(node: ast.AST, text: str) -> None:
    fine = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, *_OPERATORS))
    fine = fine or (isinstance(node, ast.Constant) and isinstance(node.value, (int, float)))
    if isinstance(node, ast.Call):
        fine = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        if fine:
            _check_arguments(node.func.id, len(node.args), text)  # type: ignore[attr-defined]
    if not fine:
        raise ObjectiveError(
            f"{text!r} uses more than arithmetic; there are + - * / **, parentheses, {', '.join(_FUNCTIONS)}"
        )


def _check_arguments(function: str, given: int, text: str) -> None:
    least, most = _LEAST_MOST[function]
    if not least <= given <= most:
        wanted = f"{least}" if least == most else f"{least} or more" if most > 2 else f"{least} or {most}"
        raise ObjectiveError(f"{text!r} gives {function} {given} numbers; it takes {wanted}")


def _value(node: ast.expr, properties: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return properties[node.id]
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, properties))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, properties), _value(node.right, properties))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _FUNCTIONS[node.func.id](*(_value(argument, properties) for argument in node.args))
    raise ObjectiveError("an expression has more than arithmetic in it")
