"""Reading and checking of rule files.

Conditions of user's rules are `rule_engine` expressions: unlike the requirements of an objective they combine several
facts with arithmetic, and are type-checked against the facts before a retraining starts. The shipped rules use a part
of that language, which `plain_condition` evaluates without importing it.
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from onefold.retraining.plain_condition import PlainCondition
from onefold.retraining.rules import ACTIONS, FACTS, TYPE_NAMES, Condition, Fact, Rule, Rules
from onefold.vocabulary.documents import parse_toml, read_document
from onefold.vocabulary.errors import InputError, suggestion, unknown

SHIPPED = "rules.toml"
MAX_FILE_BYTES = 100_000
MAX_WIDTH = 100  # characters of a formatted fact, and digits after the point
OFF = "off"  # the action that switches a shipped rule off
_KEYS = ("name", "when", "then", "say")
_EXAMPLES: dict[type[Fact], tuple[Fact, ...]] = {float: (1, 1.5), str: ("adam",), bool: (True,)}


def read_rules(path: str | Path | None = None) -> Rules:
    """Read the shipped rules, and those of the user's file.

    A user's rule of the same kind and name replaces the shipped one in its place, `then = "off"` removes it, and all
    others are evaluated before the shipped ones.

    Raises:
        InputError: A rule is invalid. The message names file and line.
    """
    text = files("onefold.retraining").joinpath(SHIPPED).read_text(encoding="utf-8")
    shipped = _parse(text, SHIPPED, None)
    custom = {} if path is None else _parse(_read_text(Path(path)), str(path), shipped)
    narrow, react = (_merge(shipped[kind], custom.get(kind, {})) for kind in ("narrow", "react"))
    return Rules(narrow, react)


def _merge(shipped: Mapping[str, Rule | None], custom: Mapping[str, Rule | None]) -> tuple[Rule, ...]:
    added = [rule for name, rule in custom.items() if name not in shipped]
    kept = [custom.get(name, rule) for name, rule in shipped.items()]
    return tuple(rule for rule in (*added, *kept) if rule)


def _read_text(path: Path) -> str:
    try:
        return read_document(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
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
    is_shipped: bool = False

    def error(self, problem: str, key: str | None = None) -> InputError:
        path = (self.kind, self.number) if key is None else (self.kind, self.number, key)
        return InputError(f"{self.file}, line {_line(self.text, *path)}: {problem}")


def _parse(text: str, file: str, shipped: Mapping[str, Collection[str]] | None) -> dict[str, dict[str, Rule | None]]:
    """Return the rules of a file by kind and name; None for a shipped rule that it switches off.

    `shipped` has the names of the shipped rules; it is None while these are read themselves.
    """
    known_names = shipped or {}
    try:
        tables = parse_toml(text)
    except ValueError as error:
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
            location = _Location(file, text, kind, number, shipped is None)
            _check_keys(table, location)
            name = table["name"]
            if name in parsed[kind]:
                raise location.error(f"duplicate {kind} rule {name!r}; give it another name", "name")
            if table["then"] == OFF and name not in known_names.get(kind, ()):
                known = suggestion(name, known_names.get(kind, ()))
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
    if location.is_shipped:
        return Rule(name, when, then, say, PlainCondition(when))
    return Rule(name, when, then, say, _checked_condition(when, name, location))


def _checked_condition(when: str, name: str, location: _Location) -> Condition:
    """Parse a user's condition. Raises InputError with its line."""
    from onefold.retraining.checked_condition import CheckedCondition, ConditionError

    try:
        return CheckedCondition(when, FACTS[location.kind])
    except ConditionError as error:
        problem = _unknown_fact(error.unknown, location.kind) if error.unknown else str(error)
        raise location.error(f"the `when` of {name!r} {problem}", "when") from error


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
                f"{subject} cannot format {fact}, {TYPE_NAMES[facts[fact]]}, with {given!r}; write {{{fact}}}, or for "
                "a number something like {left_s:.0f}",
                "say",
            )


def _is_valid_format(spec: str, fact_type: type[Fact]) -> bool:
    if any(int(number) > MAX_WIDTH for number in re.findall(r"\d+", spec)):
        return False
    try:
        for example in _EXAMPLES[fact_type]:
            format(example, spec)
    except ValueError:
        return False
    return True


def _unknown_fact(fact: str, kind: str) -> str:
    known = "; it is available to react rules only" if fact in FACTS["react"] else suggestion(fact, FACTS[kind])
    return f"refers to the unknown fact {fact!r}{known}"


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
