"""The parameters of a search space: real numbers, integers, choices and constants, with conditions."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from onefold.vocabulary.argument_checks import suggest_fields
from onefold.vocabulary.errors import SpaceError, unknown
from onefold.vocabulary.records import Value

Conditions = Mapping[str, tuple[Value, ...]]


@suggest_fields
@dataclass(frozen=True)
class Float:
    """A real number from `low` to `high`, both included; with `log`, uniform on a logarithmic scale."""

    low: float
    high: float
    log: bool = False
    default: float | None = None
    when: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("low", "high", "default"):
            number = getattr(self, name)
            if isinstance(number, bool) or not (isinstance(number, Real) or (number is None and name == "default")):
                raise SpaceError(f"a Float takes numbers, got {name}={number!r}")
            # 0 and 0.0 are the same bound and must have the same digest.
            object.__setattr__(self, name, None if number is None else float(number))
        _check_range(self)

    def draw(self, rng: random.Random) -> float:
        """Return a random value."""
        return self.at(rng.random())

    def at(self, share: float) -> float:
        """Return the value at a fraction `share` (0 to 1) of the range."""
        if share in (0, 1):
            return self.high if share else self.low
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(value, self.low), self.high)

    def contains(self, value: Any) -> bool:
        """Return whether `value` is allowed."""
        return isinstance(value, (int, float)) and not isinstance(value, bool) and self.low <= value <= self.high

    def grid(self, points: int) -> tuple[Value, ...]:
        """Return `points` evenly spaced values from low to high."""
        return tuple(dict.fromkeys(self.at(i / (points - 1)) if points > 1 else self.at(0.5) for i in range(points)))

    @property
    def size(self) -> float:
        """Return the number of values."""
        return 1 if self.low == self.high else math.inf


@suggest_fields
@dataclass(frozen=True)
class Int:
    """An integer from `low` to `high`, both included; with `log`, uniform on a logarithmic scale."""

    low: int
    high: int
    log: bool = False
    default: int | None = None
    when: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in (self.low, self.high)):
            raise SpaceError(f"an Int takes integers, got low={self.low!r}, high={self.high!r}; use Float")
        _check_range(self)

    def draw(self, rng: random.Random) -> int:
        """Return a random value."""
        return self.at(rng.random()) if self.log else rng.randint(self.low, self.high)

    def at(self, share: float) -> int:
        """Return the value at a fraction `share` (0 to 1) of the range."""
        low, high = self.low - 0.5, self.high + 0.5
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        return min(max(round(value), self.low), self.high)

    def contains(self, value: Any) -> bool:
        """Return whether `value` is allowed."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def grid(self, points: int) -> tuple[Value, ...]:
        """Return all values if there are at most `points`, otherwise `points` evenly spaced ones."""
        if self.size <= points:
            return tuple(range(self.low, self.high + 1))
        ends = Float(self.low, self.high, log=self.log)
        return tuple(
            dict.fromkeys(round(ends.at(i / (points - 1))) if points > 1 else self.at(0.5) for i in range(points))
        )

    @property
    def size(self) -> float:
        """Return the number of values."""
        return self.high - self.low + 1


@dataclass(frozen=True, init=False)
class Choice:
    """One of the given options."""

    options: tuple[Value, ...]
    default: Value
    when: Mapping[str, Any]

    def __init__(self, *options: Value, default: Value = None, when: Mapping[str, Any] | None = None) -> None:
        if not options:
            raise SpaceError("a Choice needs at least one option, for example Choice('relu', 'tanh')")
        if len(options) == 1 and isinstance(options[0], (list, tuple)):
            raise SpaceError(f"expected options one by one, got a list; write Choice(*{options[0]!r})")
        for option in options:
            if not isinstance(option, (str, int, float, bool, type(None))):
                raise SpaceError(
                    f"the options of a Choice are strings, numbers, booleans or None, got {option!r}; "
                    "name it by a string and build it in the workload"
                )
            if isinstance(option, float) and not math.isfinite(option):
                raise SpaceError(f"the numbers of a Choice must be finite, got {option!r}; name it by a string")
        if len({(type(option), option) for option in options}) < len(options):
            raise SpaceError(f"the options of a Choice must differ, got {options!r}")
        object.__setattr__(self, "options", tuple(options))
        object.__setattr__(self, "default", default)
        object.__setattr__(self, "when", dict(when or {}))
        if default is not None and not self.contains(default):
            raise SpaceError(f"the default must be one of the options, got {default!r} for {options!r}")

    def draw(self, rng: random.Random) -> Value:
        """Return a random option."""
        return rng.choice(self.options)

    def at(self, share: float) -> Value:
        """Return the option at a fraction `share` (0 to 1) of the list."""
        return self.options[min(int(share * len(self.options)), len(self.options) - 1)]

    def contains(self, value: Any) -> bool:
        """Return whether `value` is allowed; 1, 1.0 and True are three different options."""
        return any(type(value) is type(option) and value == option for option in self.options)

    def grid(self, points: int) -> tuple[Value, ...]:  # noqa: ARG002 - as for ranges
        """Return all options."""
        return self.options

    @property
    def size(self) -> float:
        """Return the number of values."""
        return len(self.options)


Parameter = Float | Int | Choice
KINDS: Mapping[str, type[Parameter]] = {"float": Float, "int": Int, "choice": Choice}


def parameter_of(name: str, value: Any) -> Parameter:
    """Return a parameter as it is, and a constant as a choice with one option."""
    if not name.isidentifier():
        raise SpaceError(f"the name of a parameter must be a Python identifier, got {name!r}")
    if isinstance(value, (Float, Int, Choice)):
        return value
    if isinstance(value, (str, int, float, bool, type(None))):
        return Choice(value)
    raise SpaceError(f"{name} must be a Float, an Int, a Choice or a constant, got {value!r}")


def _check_range(parameter: Float | Int) -> None:
    low, high, default = parameter.low, parameter.high, parameter.default
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise SpaceError(f"low must not exceed high, and both must be finite, got low={low}, high={high}")
    if parameter.log and low <= 0:
        raise SpaceError(f"a logarithmic range must start above 0, got low={low}")
    if default is not None and not parameter.contains(default):
        kind = type(parameter).__name__
        raise SpaceError(f"the default of this {kind} must lie between {low} and {high}, got {default!r}")


def conditions_of(parameter: Parameter) -> Conditions:
    """Return the condition of a parameter: the values of other parameters with which it is active."""
    # The order of a set differs between processes; the digest must not.
    when = {p: sorted(w, key=repr) if isinstance(w, (set, frozenset)) else w for p, w in parameter.when.items()}
    return {parent: tuple(w) if isinstance(w, (tuple, list)) else (w,) for parent, w in when.items()}


def is_same_value(value: Value, option: Value) -> bool:
    """Return whether two values are equal; True and 1 are not, but 1.0 and 1 are."""
    return isinstance(value, bool) == isinstance(option, bool) and value == option


def with_conditions(parameter: Parameter, when: Mapping[str, Any]) -> Parameter:
    """Return the parameter with another condition."""
    if isinstance(parameter, Choice):
        return Choice(*parameter.options, default=parameter.default, when=when)
    return type(parameter)(parameter.low, parameter.high, parameter.log, parameter.default, when)  # type: ignore[arg-type]


def parameter_to_json(parameter: Parameter) -> dict[str, Any]:
    """Return a parameter as plain JSON values."""
    kind = type(parameter).__name__.lower()
    if isinstance(parameter, Choice):
        content: dict[str, Any] = {"options": list(parameter.options)}
    else:
        content = {"low": parameter.low, "high": parameter.high, "log": parameter.log}
    if parameter.default is not None:
        content["default"] = parameter.default
    if parameter.when:
        content["when"] = {parent: list(wanted) for parent, wanted in conditions_of(parameter).items()}
    return {"kind": kind, **content}


def parameter_from_json(name: str, content: Mapping[str, Any]) -> Parameter:
    """Return the parameter that `parameter_to_json` wrote."""
    fields = {**content}
    kind = fields.pop("kind", None)
    if kind not in KINDS:
        raise SpaceError(unknown("kind", kind, KINDS, of=f"the parameter {name!r}"))
    if kind == "choice":
        return Choice(*fields.pop("options"), **fields)
    return KINDS[kind](**fields)
