"""The search space: parameters in groups, with conditions.

    Space(
        model=dict(width=Choice(8, 16, 32), depth=Int(1, 4)),
        training=dict(
            optimizer=Choice("sgd", "adam"),
            lr=Float(1e-4, 1e-1, log=True, default=1e-2),
            momentum=Float(0.0, 0.99, when={"optimizer": "sgd"}),
            epochs=10,                                   # a constant
        ),
    )

A configuration is flat, so names are unique over all groups. Parameters without a group belong to `training`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from onefold.vocabulary.errors import SpaceError, suggestion, unknown
from onefold.vocabulary.records import Config, Value
from onefold.vocabulary.signature import suggest_fields

DEFAULT_GROUP = "training"
When = Mapping[str, tuple[Value, ...]]


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


class Space:
    """Parameters in groups. Immutable; spaces of the same content are equal."""

    def __init__(self, **groups: Any) -> None:
        self.groups: dict[str, dict[str, Parameter]] = {}
        for group, content in groups.items():
            members = content if isinstance(content, Mapping) else {group: content}
            target = self.groups.setdefault(group if isinstance(content, Mapping) else DEFAULT_GROUP, {})
            for name, parameter in members.items():
                if name in self.parameters:
                    raise SpaceError(f"parameter {name!r} is in two groups; names must be unique over the whole space")
                target[name] = _parameter(name, parameter)
        _check_conditions(self.parameters)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Return all parameters by name, in the order they were given."""
        return {name: parameter for group in self.groups.values() for name, parameter in group.items()}

    def group_of(self, name: str) -> str:
        """Return the group of a parameter."""
        return next(group for group, members in self.groups.items() if name in members)

    def only(self, groups: Sequence[str]) -> Space:
        """Return the space of these groups alone, without conditions on parameters of other groups."""
        for group in groups:
            if group not in self.groups:
                raise SpaceError(unknown("group", group, self.groups, of="the space"))
        part = Space()
        for group in groups:
            part.groups[group] = {}
            names = {name for g in groups for name in self.groups[g]}
            for name, parameter in self.groups[group].items():
                when = {parent: wanted for parent, wanted in parameter.when.items() if parent in names}
                part.groups[group][name] = _with_conditions(parameter, when)
        return part

    def __len__(self) -> int:
        return len(self.parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        groups = (
            f"{group}=dict({', '.join(f'{n}={p!r}' for n, p in members.items())})"
            for group, members in self.groups.items()
        )
        return f"Space({', '.join(groups)})"

    @property
    def digest(self) -> str:
        """Return a short hash of the content."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def in_order(self) -> list[str]:
        """Return all names in topological order: each after the parameters that its condition depends on."""
        done: list[str] = []
        waiting = list(self.parameters)
        while waiting:
            ready = [name for name in waiting if all(p in done for p in self.parameters[name].when)]
            done += ready
            waiting = [name for name in waiting if name not in ready]
        return done

    def is_active(self, name: str, values: Mapping[str, Value]) -> bool:
        """Return whether the conditions of a parameter hold for `values`, the values of active parameters."""
        return all(
            parent in values and any(_same(values[parent], option) for option in wanted)
            for parent, wanted in _when(self.parameters[name]).items()
        )

    def config(self, values: Mapping[str, Value]) -> Config:
        """Return the configuration of the active parameters among `values`, in the order of the space."""
        active: dict[str, Value] = {}
        for name in self.in_order():
            if name in values and self.is_active(name, active):
                active[name] = values[name]
        return Config({name: active[name] for name in self.parameters if name in active})

    def draw(self, rng: random.Random) -> Config:
        """Return a random configuration."""
        return self.config({name: parameter.draw(rng) for name, parameter in self.parameters.items()})

    @property
    def has_defaults(self) -> bool:
        """Return whether any parameter has a default."""
        return any(parameter.default is not None for parameter in self.parameters.values())

    def default(self) -> Config:
        """Return the default configuration; parameters without a default take the middle of their range."""
        return self.config({name: self.default_of(name) for name in self.parameters})

    def default_of(self, name: str) -> Value:
        """Return the default of one parameter, active or not."""
        parameter = self.parameters[name]
        return parameter.default if parameter.default is not None else parameter.at(0.5)

    def complete(self, given: Mapping[str, Any]) -> Config:
        """Return the configuration with these values and the defaults of all other active parameters.

        Raises SpaceError for a parameter that the space does not have, and for a missing one without a default.
        """
        for name in given:
            if name not in self.parameters:
                raise SpaceError(unknown("parameter", name, self.parameters, of="the space"))
        values: dict[str, Value] = {}
        for name in self.in_order():
            if not self.is_active(name, values):
                continue
            parameter = self.parameters[name]
            default = parameter.grid(1)[0] if parameter.size == 1 else parameter.default
            if name not in given and default is None and parameter.size > 1:
                raise SpaceError(
                    f"no value for the parameter {name!r}, which has no default; add it to the configuration"
                )
            values[name] = given.get(name, default)
        return Config(values)

    def check(self, config: Mapping[str, Value]) -> None:
        """Raise SpaceError unless `config` has exactly the active parameters, each with an allowed value."""
        for name, value in config.items():
            if name not in self.parameters:
                raise SpaceError(unknown("parameter", name, self.parameters, of="the space"))
            if not self.parameters[name].contains(value):
                raise SpaceError(f"{name} must be in {self.parameters[name]!r}, got {value!r}")
        for name in self.in_order():
            active = self.is_active(name, config)
            if active and name not in config:
                raise SpaceError(f"parameter {name!r} is missing from the configuration")
            if not active and name in config:
                raise SpaceError(
                    f"parameter {name!r} is set, but its condition {dict(_when(self.parameters[name]))} does not hold"
                )

    def grid(self, points: int) -> Iterator[Config]:
        """Yield every configuration once, with at most `points` values of each range."""
        names = list(self.parameters)
        seen: set[Config] = set()
        for values in itertools.product(*(self.parameters[name].grid(points) for name in names)):
            config = self.config(dict(zip(names, values)))
            if config not in seen:
                seen.add(config)
                yield config

    @property
    def size(self) -> float:
        """Return an upper bound of the number of configurations; infinite if a range is continuous."""
        return math.prod(parameter.size for parameter in self.parameters.values())

    def to_json(self) -> dict[str, Any]:
        """Return the space as plain JSON values; `from_json` restores an equal space."""
        return {
            group: {name: _parameter_to_json(parameter) for name, parameter in members.items()}
            for group, members in self.groups.items()
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Space:
        """Return the space that `to_json` wrote."""
        return cls(
            **{
                group: {name: _parameter_from_json(name, content) for name, content in members.items()}
                for group, members in data.items()
            }
        )


def _parameter(name: str, given: Any) -> Parameter:
    if not name.isidentifier():
        raise SpaceError(f"the name of a parameter must be a Python identifier, got {name!r}")
    if isinstance(given, (Float, Int, Choice)):
        return given
    if isinstance(given, (str, int, float, bool, type(None))):
        return Choice(given)
    raise SpaceError(f"{name} must be a Float, an Int, a Choice or a constant, got {given!r}")


def _check_range(parameter: Float | Int) -> None:
    low, high, default = parameter.low, parameter.high, parameter.default
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise SpaceError(f"low must not exceed high, and both must be finite, got low={low}, high={high}")
    if parameter.log and low <= 0:
        raise SpaceError(f"a logarithmic range must start above 0, got low={low}")
    if default is not None and not parameter.contains(default):
        kind = type(parameter).__name__
        raise SpaceError(f"the default of this {kind} must lie between {low} and {high}, got {default!r}")


def _check_conditions(parameters: Mapping[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        for parent, wanted in _when(parameter).items():
            if parent not in parameters:
                raise SpaceError(
                    f"{name} depends on {parent!r}, which is not in the space{suggestion(parent, parameters)}"
                )
            for value in wanted:
                if not parameters[parent].contains(value):
                    raise SpaceError(f"{name} depends on {parent}={value!r}, which is not a value of {parent}")
        ancestors, seen = list(parameter.when), set()
        while ancestors:
            ancestor = ancestors.pop()
            if ancestor == name:
                raise SpaceError(f"the conditions of {name!r} form a cycle")
            if ancestor not in seen:
                seen.add(ancestor)
                ancestors += list(parameters[ancestor].when) if ancestor in parameters else []


def _when(parameter: Parameter) -> When:
    # The order of a set differs between processes; the digest must not.
    when = {p: sorted(w, key=repr) if isinstance(w, (set, frozenset)) else w for p, w in parameter.when.items()}
    return {parent: tuple(w) if isinstance(w, (tuple, list)) else (w,) for parent, w in when.items()}


def _same(value: Value, option: Value) -> bool:
    return isinstance(value, bool) == isinstance(option, bool) and value == option


def _with_conditions(parameter: Parameter, when: Mapping[str, Any]) -> Parameter:
    if isinstance(parameter, Choice):
        return Choice(*parameter.options, default=parameter.default, when=when)
    return type(parameter)(parameter.low, parameter.high, parameter.log, parameter.default, when)  # type: ignore[arg-type]


def _parameter_to_json(parameter: Parameter) -> dict[str, Any]:
    kind = type(parameter).__name__.lower()
    if isinstance(parameter, Choice):
        content: dict[str, Any] = {"options": list(parameter.options)}
    else:
        content = {"low": parameter.low, "high": parameter.high, "log": parameter.log}
    if parameter.default is not None:
        content["default"] = parameter.default
    if parameter.when:
        content["when"] = {parent: list(wanted) for parent, wanted in _when(parameter).items()}
    return {"kind": kind, **content}


def _parameter_from_json(name: str, content: Mapping[str, Any]) -> Parameter:
    known = {**content}
    kind = known.pop("kind", None)
    if kind not in KINDS:
        raise SpaceError(unknown("kind", kind, KINDS, of=f"the parameter {name!r}"))
    if kind == "choice":
        return Choice(*known.pop("options"), **known)
    return KINDS[kind](**known)
