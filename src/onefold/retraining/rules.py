"""The rules of a retraining: which plans are worth keeping before it, and what is done on the way.

[[narrow]]
name = "enough updates"
when = "updates < 20 and effective_batch > 16"
then = "refuse"
say = "only {updates} updates of {effective_batch} samples each fit into the window"
…
"""

from __future__ import annotations

import decimal
import string
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Any

import rule_engine  # type: ignore[import-untyped]

from onefold.vocabulary.errors import InputError, suggestion

Fact = float | str | bool

_PLAN: dict[str, type[Fact]] = {
    "batch_size": float,
    "accumulation": float,
    "effective_batch": float,
    "segments": float,
    "epochs": float,
    "freeze_rate": float,
    "lr": float,
    "optimizer": str,
    "layers": float,
    "has_batch_norm": bool,
    "samples": float,
    "updates": float,
    "passes": float,
    "update_s": float,
    "window_s": float,
    "fastest_update_share": float,
    "memory_bytes": float,
    "limit_bytes": float,
}
_WAY: dict[str, type[Fact]] = {
    "elapsed_s": float,
    "left_s": float,
    "micro_window_s": float,
    "loss": float,
    "best_loss": float,
    "first_loss": float,
    "is_finite": bool,
    "score": float,
    "best_score": float,
    "first_score": float,
    "gain_per_s": float,
    "stalled": float,
    "lowered": float,
    "merit": float,
    "best_other_merit": float,
    "plans": float,
    "predicted_bytes": float,
    "measured_bytes": float,
    "free_bytes": float,
}
FACTS: dict[str, dict[str, type[Fact]]] = {"narrow": _PLAN, "react": _PLAN | _WAY}  # what each kind of rule may ask for
THENS = {
    "narrow": ("refuse", "prefer", "defer"),
    "react": ("replan", "give way", "slow down", "go back", "finish"),
}
OFF = "off"  # the `then` that takes a shipped rule away
_KEYS = ("name", "when", "then", "say")
_KINDS = {float: "a number", str: "a text", bool: "true or false"}
_SAMPLES: dict[type[Fact], tuple[Fact, ...]] = {float: (1, 1.5), str: ("adam",), bool: (True,)}
_PAIRS = {  # of the expressions that rule_engine reads, those with two sides that a rule may use
    "LogicExpression",
    "ComparisonExpression",
    "ArithmeticComparisonExpression",
    "ArithmeticExpression",
    "AddExpression",
    "SubtractExpression",
}
_SINGLE = {"SymbolExpression", "FloatExpression", "StringExpression", "BooleanExpression"}
_MIXED = "brings together what is of different kinds; numbers go with numbers, texts in quotes with texts"
_MORE = "uses more than facts, numbers, texts, true, false, + - * / // % **, comparisons, in [ ], and, or, not and ( )"
_NOT_TRUTHS = "joins by and, or, not what is not true or false; write `lr > 1 or lr < 0`, and not `lr > 1 or 0`"
# What is not a number compares as false and goes on, as everywhere else; a division by zero ends the rule.
_ARITHMETIC = decimal.Context(traps=[decimal.DivisionByZero, decimal.Overflow])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided."""

    then: str  # of narrow: refuse, prefer, defer, or keep where no rule held; of react: what to do
    rule: str  # its name; empty where none held
    said: str


@dataclass(frozen=True, slots=True)
class Rule:
    """When something holds, what follows, and what is said about it."""

    name: str
    when: str
    then: str
    say: str
    condition: rule_engine.Rule = field(repr=False, compare=False)  # `when`, read

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        """Whether it does; a rule that cannot be worked out with these facts does not hold."""
        try:
            return bool(self.condition.matches(facts))
        except (rule_engine.EngineError, ArithmeticError):
            # Kinds were checked when the rule was read, so this is a division by zero or a number without bounds in a
            # rule of the user's: nothing to end a retraining for, which has a model to hand over.
            return False

    def verdict(self, facts: Mapping[str, Fact]) -> Verdict:
        """What it decides, with the facts put into what it says."""
        return Verdict(self.then, self.name, self.say.format_map({name: _shown(fact) for name, fact in facts.items()}))


@dataclass(frozen=True, slots=True)
class Rules:
    """What narrows the plans before a retraining, and what reacts on the way, each in the order that is asked.

    Every fact of the kind must be given (`FACTS`); a number that is not known is nan, and no comparison with it holds.
    """

    narrow: tuple[Rule, ...]
    react: tuple[Rule, ...]

    def verdict(self, facts: Mapping[str, Fact]) -> Verdict:
        """What becomes of a plan: refused if any rule refuses it, else what the first rule that holds says, or kept."""
        refusing_first = sorted(self.narrow, key=lambda rule: rule.then != "refuse")
        return _first(refusing_first, facts, "narrow") or Verdict("keep", "", "")

    def reaction(self, facts: Mapping[str, Fact]) -> Verdict | None:
        """What to do after a micro-window: what the first rule that holds says; None to go on as before."""
        return _first(self.react, facts, "react")


def read_rules(more: str | Path | None = None) -> Rules:
    """The rules that ship with Onefold, and those of the user's file.

    A rule of the same kind and name replaces the shipped one in its place, `then = "off"` takes it away, others are
    asked before the shipped ones. InputError names the file, the line and what is wrong.
    """
    text = files("onefold.retraining").joinpath("rules.toml").read_text(encoding="utf-8")
    shipped = _parsed(text, "rules.toml", {})
    users = {} if more is None else _parsed(_text(Path(more)), str(more), shipped)
    narrow, react = (_merged(shipped[kind], users.get(kind, {})) for kind in ("narrow", "react"))
    return Rules(narrow, react)


def _first(rules: Iterable[Rule], facts: Mapping[str, Fact], kind: str) -> Verdict | None:
    plain = {name: form(facts[name]) for name, form in FACTS[kind].items()}  # rule_engine reads no number of numpy's
    return next((rule.verdict(facts) for rule in rules if rule.holds(plain)), None)


def _shown(fact: Fact) -> Fact:
    """Without the .0 of a whole number."""
    return int(fact) if isinstance(fact, float) and fact.is_integer() else fact


def _merged(shipped: Mapping[str, Rule | None], users: Mapping[str, Rule | None]) -> tuple[Rule, ...]:
    added = [rule for name, rule in users.items() if name not in shipped]
    kept = [users.get(name, rule) for name, rule in shipped.items()]
    return tuple(rule for rule in (*added, *kept) if rule)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the rules in {path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rule stands, to complain about it."""

    where: str  # the file
    text: str
    kind: str
    number: int  # among those of its kind, from 0

    def wrong(self, what: str, key: str | None = None) -> InputError:
        path = (self.kind, self.number) if key is None else (self.kind, self.number, key)
        return InputError(f"{self.where}, line {_line(self.text, *path)}: {what}")


def _parsed(text: str, where: str, shipped: Mapping[str, Collection[str]]) -> dict[str, dict[str, Rule | None]]:
    """The rules of a file by kind and name; None for those that it switches off, which must be among the shipped."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}; every text stands in quotes") from error
    found: dict[str, dict[str, Rule | None]] = {kind: {} for kind in FACTS}
    for kind, rules in tables.items():
        if kind not in FACTS:
            raise InputError(
                f"{where}, line {_line(text, kind)}: there are no rules of the kind {kind!r}{suggestion(kind, FACTS)}"
            )
        if not isinstance(rules, list) or not all(isinstance(table, dict) for table in rules):
            raise InputError(
                f"{where}, line {_line(text, kind)}: {kind!r} holds no rules; begin each with [[{kind}]], two brackets"
            )
        for number, table in enumerate(rules):
            place = _Place(where, text, kind, number)
            _check_keys(table, place)
            name = table["name"]
            if name in found[kind]:
                raise place.wrong(f"there is another {kind} rule {name!r} above; give this one another name", "name")
            if table["then"] == OFF and name not in shipped.get(kind, ()):
                known = suggestion(name, shipped.get(kind, ()))
                raise place.wrong(f"no {kind} rule {name!r} ships that could be switched off{known}", "name")
            found[kind][name] = None if table["then"] == OFF else _rule(table, place)
    return found


def _check_keys(table: Mapping[str, object], place: _Place) -> None:
    for key, value in table.items():
        if key not in _KEYS:
            raise place.wrong(f"a rule has no {key!r}{suggestion(key, _KEYS)}", key)
        if not isinstance(value, str) or not value.strip():
            raise place.wrong(f"{key} must be a text in quotes, but got {value!r}", key)
    needed = ("name", "then") if table.get("then") == OFF else _KEYS
    missing = [key for key in needed if key not in table]
    if missing:
        raise place.wrong(f"this rule lacks {', '.join(missing)}; every rule has {', '.join(_KEYS)}")


def _rule(table: Mapping[str, str], place: _Place) -> Rule:
    name, when, then, say = (table[key] for key in _KEYS)
    if then not in THENS[place.kind]:
        known = suggestion(then, [*THENS[place.kind], OFF])
        raise place.wrong(f"the {place.kind} rule {name!r} cannot end in {then!r}{known}", "then")
    _check_say(say, name, place)
    return Rule(name, when, then, say, _condition(when, name, place))


def _check_say(say: str, name: str, place: _Place) -> None:
    facts = FACTS[place.kind]
    whose = f"what {name!r} says"
    try:
        gaps = [(fact, form or "", how) for _, fact, form, how in string.Formatter().parse(say) if fact is not None]
    except ValueError as error:
        raise place.wrong(
            f"{whose} has a brace without its other: {error}; a plain one is written twice", "say"
        ) from error
    for fact, form, how in gaps:
        if fact not in facts:
            raise place.wrong(f"{whose} {_unknown(fact, place.kind)}", "say")
        if how or "{" in form or not _shows(form, facts[fact]):
            form = f"!{how}" if how else f":{form}"
            raise place.wrong(
                f"{whose} cannot show {fact}, {_KINDS[facts[fact]]}, with {form!r}; write {{{fact}}}, or like "
                "{left_s:.0f} for a number without its fraction",
                "say",
            )


def _shows(form: str, kind: type[Fact]) -> bool:
    try:
        for sample in _SAMPLES[kind]:
            format(sample, form)
    except ValueError:
        return False
    return True


def _condition(when: str, name: str, place: _Place) -> rule_engine.Rule:
    """`when`, read with the kinds of the facts, so that what is wrong with it shows here and not in a retraining."""
    facts = FACTS[place.kind]
    whose = f"the `when` of {name!r}"
    types = rule_engine.type_resolver_from_dict(
        {fact: rule_engine.DataType.from_type(form) for fact, form in facts.items()}
    )
    context = rule_engine.Context(type_resolver=types, default_timezone="utc", decimal_context=_ARITHMETIC)
    try:
        rule = rule_engine.Rule(when, context)
        what = _complaint(rule.statement.expression)
        if not what and rule.statement.expression.result_type.name != "BOOLEAN":
            what = "is not true or false; compare it with something, like: updates < 20"
    except rule_engine.RuleSyntaxError as error:
        upto = "to its end" if error.token is None else f"from {shorten(when[error.token.lexpos :], 40)!r} on"
        what = f"is no expression: it cannot be read {upto}; it reads like: updates < 20 and effective_batch > 16"
    except rule_engine.SymbolResolutionError as error:
        what = _unknown(error.symbol_name, place.kind)
    except rule_engine.EngineError as error:
        what = _MIXED if "data type mismatch" in error.message else f"cannot be worked out: {error.message}"
    except RecursionError:
        what = "is nested too deeply; make two rules of it"
    except (ArithmeticError, TypeError, ValueError) as error:
        what = f"cannot be worked out: {error}"
    if what == _MIXED:
        named = [f"{fact} is {_KINDS[facts[fact]]}" for fact in sorted(context.symbols & facts.keys())]
        what += f" ({', '.join(named)})" if named else ""
    if what:
        raise place.wrong(f"{whose} {what}", "when")
    return rule


def _unknown(fact: str, kind: str) -> str:
    known = "; only react rules know it" if fact in FACTS["react"] else suggestion(fact, FACTS[kind])
    return f"names the unknown fact {fact!r}{known}"


def _complaint(expression: Any) -> str:
    """What is wrong with the kinds in an expression, of what rule_engine would only find out later; or nothing."""
    parts = _parts(expression)
    if parts is None:
        return _MORE
    for part in parts:
        if what := _complaint(part):
            return what
    kinds = {part.result_type.name for part in parts}
    operation = getattr(expression, "type", "")
    if operation in ("and", "or", "not") and kinds != {"BOOLEAN"}:
        return _NOT_TRUTHS
    return _MIXED if len(kinds) > 1 or (operation == "uminus" and kinds != {"FLOAT"}) else ""


def _parts(expression: Any) -> list[Any] | None:
    """What an expression is made of; None for one that is none of a rule's: functions, dates, patterns, …"""
    match type(expression).__name__:
        case name if name in _PAIRS:
            return [expression.left, expression.right]
        case "UnaryExpression":
            return [expression.right]
        case "ContainsExpression":
            container = expression.container
            listed = type(container).__name__ == "ArrayExpression"
            return [expression.member, *(container.value if listed else [container])]
        case name if name in _SINGLE and not getattr(expression, "scope", None):
            return []
    return None


def _line(text: str, *path: str | int) -> int:
    """The line, from 1, on which what lies at this path of keys and places begins.

    tomllib tells no lines: the file is read up to one line after the other, until it is there.
    """
    lines = text.split("\n")
    begins = 1
    for end in range(1, len(lines) + 1):
        try:
            found = tomllib.loads("\n".join(lines[:end]))
            for step in path:
                found = found[step]  # type: ignore[index]
        except tomllib.TOMLDecodeError:
            continue  # in the midst of a text of several lines, which begins where the last whole one ended
        except (KeyError, IndexError):
            begins = end + 1
        else:
            break
    return begins
