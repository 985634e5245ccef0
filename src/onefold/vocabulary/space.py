"""The search space: parameters in groups, with conditions.

    Space(
        model=dict(width=Choice(8, 16, 32), depth=Int(1, 4)),
        training=dict(
            optimizer=Choice("sgd", "adam"),
            lr=Float(1e-4, 1e-1, log=True, default=1e-2),
            momentum=Float(0.0, 0.99, when={"optimizer": "sgd"}),
            epochs=10,                                   # a constant
        ),
        system=dict(threads=Choice(1, 2, 4), precision=Choice("float32", "bfloat16")),
        serving=dict(batch_size=Choice(1, 8, 32), threads=Choice(1, 2)),
    )

A configuration is flat, so names are unique over all groups. Parameters without a group belong to `training`.

The groups `system` and `serving` are not part of configurations. They narrow what is tuned inside of a trial: the knobs
while it trains, and the serving points of its architecture.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onefold.vocabulary.errors import SpaceError, suggestion, unknown
from onefold.vocabulary.parameters import (
    Choice,
    Float,
    Int,
    Parameter,
    conditions_of,
    is_same_value,
    parameter_from_json,
    parameter_of,
    parameter_to_json,
    with_conditions,
)
from onefold.vocabulary.records import Config, Value

__all__ = ["INNER_GROUPS", "SERVING", "SYSTEM", "Choice", "Float", "Int", "Parameter", "Space"]

DEFAULT_GROUP = "training"
SYSTEM, SERVING = "system", "serving"
INNER_GROUPS = (SYSTEM, SERVING)  # tuned inside of a trial


class Space:
    """Parameters in groups. Immutable; spaces of the same content are equal."""

    def __init__(self, **groups: Any) -> None:
        self.groups: dict[str, dict[str, Parameter]] = {}
        self.inner: dict[str, dict[str, Parameter]] = {}  # by group: system, serving
        for group, content in groups.items():
            members = content if isinstance(content, Mapping) else {group: content}
            if group in INNER_GROUPS:
                self.inner[group] = _inner_parameters(group, content)
                continue
            target = self.groups.setdefault(group if isinstance(content, Mapping) else DEFAULT_GROUP, {})
            for name, parameter in members.items():
                if name in self.parameters:
                    raise SpaceError(f"parameter {name!r} is in two groups; names must be unique over the whole space")
                target[name] = parameter_of(name, parameter)
        _check_conditions(self.parameters)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Return all parameters of configurations by name, in the order they were given."""
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
                part.groups[group][name] = with_conditions(parameter, when)
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
            for group, members in (*self.groups.items(), *self.inner.items())
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
            parent in values and any(is_same_value(values[parent], option) for option in wanted)
            for parent, wanted in conditions_of(self.parameters[name]).items()
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
                condition = dict(conditions_of(self.parameters[name]))
                raise SpaceError(f"parameter {name!r} is set, but its condition {condition} does not hold")

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
            group: {name: parameter_to_json(parameter) for name, parameter in members.items()}
            for group, members in (*self.groups.items(), *self.inner.items())
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Space:
        """Return the space that `to_json` wrote."""
        return cls(
            **{
                group: {name: parameter_from_json(name, content) for name, content in members.items()}
                for group, members in data.items()
            }
        )


def _inner_parameters(group: str, content: Any) -> dict[str, Parameter]:
    if not isinstance(content, Mapping):
        raise SpaceError(f"{group} is a group of parameters; write {group}=dict(threads=Choice(1, 2))")
    parameters = {name: parameter_of(name, parameter) for name, parameter in content.items()}
    for name, parameter in parameters.items():
        if parameter.when:
            raise SpaceError(f"{name} of the group {group!r} has a condition; only hyperparameters may have one")
        if parameter.size == math.inf:
            raise SpaceError(f"{name} of the group {group!r} must have a list of values; use Choice or Int")
    return parameters


def _check_conditions(parameters: Mapping[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        for parent, wanted in conditions_of(parameter).items():
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
