"""Reading and checking of rule files.

Conditions are `rule_engine` expressions: unlike the requirements of an objective they combine several facts with
arithmetic, and are type-checked against the facts before a retraining starts.
"""

from __future__ import annotations

import decimal
import string
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Any

import rule_engine  # type: ignore[import-untyped]

from onefold.retraining.rules import ACTIONS, FACTS, Fact, Rule, Rules
from onefold.vocabulary.errors import InputError, suggestion, unknown

OFF = "off"  # the action that switches a shipped rule off
_KEYS = ("name", "when", "then", "say")
_TYPE_NAMES = {float: "a number", str: "a string", bool: "a boolean"}
_EXAMPLES: dict[type[Fact], tuple[Fact, ...]] = {float: (1, 1.5), str: ("adam",), bool: (True,)}
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


def read_rules(path: str | Path | None = None) -> Rules:
    """Read the shipped rules, and those of the user's file.

    A user's rule of the same kind and name replaces the shipped one in its place, `then = "off"` removes it, and all
    others are evaluated before the shipped ones.

    Raises:
        InputError: A rule is invalid. The message names file and line.
    """
    text = files("onefold.retraining").joinpath("rules.toml").read_text(encoding="utf-8")
    shipped = _parse(text, "rules.toml", {})
    custom = {} if path is None else _parse(_read_text(Path(path)), str(path), shipped)
    narrow, react = (_merge(shipped[kind], custom.get(kind, {})) for kind in ("narrow", "react"))
    return Rules(narrow, react)


def _merge(shipped: Mapping[str, Rule | None], custom: Mapping[str, Rule | None]) -> tuple[Rule, ...]:
    added = [rule for name, rule in custom.items() if name not in shipped]
    kept = [custom.get(name, rule) for name, rule in shipped.items()]
    return tuple(rule for rule in (*added, *kept) if rule)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the rules in {path}: {getattr(error, 'strerror', error)}; give a TOML file"
        ) from error


@dataclass(frozen=True, slots=True)
class _Location:
    """The position of a rule in its file."""

    file: str
    text: str
    kind: str
    number: int  # among the rules of its kind, from 0

    def error(self, problem: str, key: str | None = None) -> InputError:
        path = (self.kind, self.number) if key is None else (self.kind, self.number, key)
        return InputError(f"{self.file}, line {_line(self.text, *path)}: {problem}")


def _parse(text: str, file: str, shipped: Mapping[str, Collection[str]]) -> dict[str, dict[str, Rule | None]]:
    """Return the rules of a file by kind and name; None for a shipped rule that it switches off."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not valid TOML: {error}; put every string in quotes") from error
    parsed: dict[str, dict[str, Rule | None]] = {kind: {} for kind in FACTS}
    for kind, rules in tables.items():
        if kind not in FACTS:
            raise InputError(f"{file}, line {_line(text, kind)}: {unknown('kind of rule', kind, FACTS)}")
        if not isinstance(rules, list) or not all(isinstance(table, dict) for table in rules):
            raise InputError(
                f"{file}, line {_line(text, kind)}: {kind!r} is not a list of rules; start each with [[{kind}]], "
                "two brackets"
            )
        for number, table in enumerate(rules):
            location = _Location(file, text, kind, number)
            _check_keys(table, location)
            name = table["name"]
            if name in parsed[kind]:
                raise location.error(f"duplicate {kind} rule {name!r}; give it another name", "name")
            if table["then"] == OFF and name not in shipped.get(kind, ()):
                known = suggestion(name, shipped.get(kind, ()))
                raise location.error(f"cannot switch off {name!r}: no {kind} rule of that name ships{known}", "name")
            parsed[kind][name] = None if table["then"] == OFF else _rule(table, location)
    return parsed


def _check_keys(table: Mapping[str, object], location: _Location) -> None:
    for key, value in table.items():
        if key not in _KEYS:
            raise location.error(unknown("key", key, _KEYS), key)
        if not isinstance(value, str) or not value.strip():
            raise location.error(f"{key} must be a non-empty string in quotes, got {value!r}", key)
    required = ("name", "then") if table.get("then") == OFF else _KEYS
    missing = [key for key in required if key not in table]
    if missing:
        raise location.error(f"this rule has no {', '.join(missing)}; every rule needs {', '.join(_KEYS)}")


def _rule(table: Mapping[str, str], location: _Location) -> Rule:
    name, when, then, say = (table[key] for key in _KEYS)
    if then not in ACTIONS[location.kind]:
        known = [*ACTIONS[location.kind], OFF]
        raise location.error(unknown("action", then, known, of=f"the {location.kind} rule {name!r}"), "then")
    _check_message(say, name, location)
    return Rule(name, when, then, say, _condition(when, name, location))


def _check_message(say: str, name: str, location: _Location) -> None:
    facts = FACTS[location.kind]
    subject = f"the `say` of {name!r}"
    try:
        fields = [
            (fact, spec or "", conversion)
            for _, fact, spec, conversion in string.Formatter().parse(say)
            if fact is not None
        ]
    except ValueError as error:
        raise location.error(f"{subject} has an unmatched brace: {error}; double a literal one", "say") from error
    for fact, spec, conversion in fields:
        if fact not in facts:
            raise location.error(f"{subject} {_unknown_fact(fact, location.kind)}", "say")
        if conversion or "{" in spec or not _is_valid_format(spec, facts[fact]):
            given = f"!{conversion}" if conversion else f":{spec}"
            raise location.error(
                f"{subject} cannot format {fact}, {_TYPE_NAMES[facts[fact]]}, with {given!r}; write {{{fact}}}, or for "
                "a number something like {left_s:.0f}",
                "say",
            )


def _is_valid_format(spec: str, fact_type: type[Fact]) -> bool:
    try:
        for example in _EXAMPLES[fact_type]:
            format(example, spec)
    except ValueError:
        return False
    return True


def _condition(when: str, name: str, location: _Location) -> rule_engine.Rule:
    """Parse `when` with the types of the facts, so that mistakes show here and not during a retraining."""
    facts = FACTS[location.kind]
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
        problem = _unknown_fact(error.symbol_name, location.kind)
    except rule_engine.EngineError as error:
        problem = _MIXED_TYPES if "data type mismatch" in error.message else f"cannot be evaluated: {error.message}"
    except RecursionError:
        problem = "is nested too deeply; split it into two rules"
    except (ArithmeticError, TypeError, ValueError) as error:
        problem = f"cannot be evaluated: {error}"
    if problem == _MIXED_TYPES:
        used = [f"{fact} is {_TYPE_NAMES[facts[fact]]}" for fact in sorted(context.symbols & facts.keys())]
        problem += f" ({', '.join(used)})" if used else ""
    if problem:
        raise location.error(f"the `when` of {name!r} {problem}", "when")
    return rule


def _unknown_fact(fact: str, kind: str) -> str:
    known = "; it is available to react rules only" if fact in FACTS["react"] else suggestion(fact, FACTS[kind])
    return f"refers to the unknown fact {fact!r}{known}"


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


def _line(text: str, *path: str | int) -> int:
    """Return the line, from 1, on which the value at this path of keys and indices begins.

    tomllib reports no positions: parse longer and longer prefixes of the file until the value is there.
    """
    lines = text.split("\n")
    line = 1
    for end in range(1, len(lines) + 1):
        try:
            value = tomllib.loads("\n".join(lines[:end]))
            for step in path:
                value = value[step]  # type: ignore[index]
        except tomllib.TOMLDecodeError:
            continue  # inside a multi-line string, which begins after the last complete line
        except (KeyError, IndexError):
            line = end + 1
        else:
            break
    return line
