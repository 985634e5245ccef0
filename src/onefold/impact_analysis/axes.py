"""Hyperparameters as axes of a space: the coordinate of a configuration, and the probability mass of cells.

A regression tree is constant between two of its thresholds, and a category has nothing between it and the next. An axis
is therefore divided into cells, each with a representative point and its share of the prior.

Whether a conditional hyperparameter is active is a fact about the one that it depends on, and no value of its own: an
inactive one has no coordinate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onefold.impact_analysis.sample_validation import FloatArray
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Value
from onefold.vocabulary.space import Choice, Int, Parameter, Space

Configuration = Mapping[str, Value]


class Axis(Protocol):
    """The axis of one hyperparameter."""

    @property
    def name(self) -> str:
        """Return the name of the hyperparameter."""

    def coordinate(self, config: Configuration) -> float | None:
        """Return the coordinate of a configuration; None if the hyperparameter is inactive in it."""

    def draw(self, rng: random.Random) -> float:
        """Return the coordinate of a random value."""

    def cells(self, thresholds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return points and shares, which add up to 1, of cells that no threshold divides."""


@dataclass(frozen=True, slots=True)
class Categories:
    """A categorical hyperparameter with equally likely options."""

    name: str
    options: tuple[Value, ...]

    def coordinate(self, config: Configuration) -> float | None:
        """Return the index of the option; None if the hyperparameter is inactive."""
        if self.name not in config:
            return None
        value = config[self.name]
        for index, option in enumerate(self.options):
            if type(value) is type(option) and value == option:  # 1 and True differ, as in a Choice
                return float(index)
        raise InputError(f"{self.name} must be one of {self.options!r}, but got {value!r}")

    def draw(self, rng: random.Random) -> float:
        """Return the index of a random option."""
        return float(rng.randrange(len(self.options)))

    def cells(self, thresholds: FloatArray) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002 - categories are never divided
        """Return one cell per option, all with the same share."""
        return np.arange(float(len(self.options))), np.full(len(self.options), 1.0 / len(self.options))


@dataclass(frozen=True, slots=True)
class Range:
    """A number, uniform or log-uniform between two bounds."""

    name: str
    low: float
    high: float
    log: bool = False

    def coordinate(self, config: Configuration) -> float | None:
        """Return the share of the range below the value, from 0 to 1; None if the hyperparameter is inactive."""
        if self.name not in config:
            return None
        value = config[self.name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            raise InputError(f"{self.name} must lie between {self.low} and {self.high}, but got {value!r}")
        low, high, point = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return (point - low) / (high - low)

    def draw(self, rng: random.Random) -> float:
        """Return a random share of the range."""
        return rng.random()

    def cells(self, thresholds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the intervals between neighboring thresholds."""
        edges = np.concatenate([[0.0], np.unique(thresholds[(thresholds > 0) & (thresholds < 1)]), [1.0]])
        return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def axes_of(configs: Sequence[Configuration], space: Space | None = None) -> tuple[Axis, ...]:
    """Return the axes of a space, or of the configurations if no space is given.

    Without a space each observed value is a category, so that the scale on which numbers were sampled does not matter;
    numbers keep their order.
    """
    if space is not None:
        return tuple(_axis(name, parameter) for name, parameter in space.parameters.items())
    names = dict.fromkeys(name for config in configs for name in config)
    return tuple(_observed(name, configs) for name in names)


def _axis(name: str, parameter: Parameter) -> Axis:
    if isinstance(parameter, Choice):
        return Categories(name, _sorted_numbers(parameter.options))
    if parameter.low == parameter.high:
        return Categories(name, (parameter.low,))
    # An integer represents the interval that rounds to it.
    margin = 0.5 if isinstance(parameter, Int) else 0.0
    return Range(name, parameter.low - margin, parameter.high + margin, parameter.log)


def _observed(name: str, configs: Sequence[Configuration]) -> Categories:
    values = {(type(value), value): value for config in configs for key, value in config.items() if key == name}
    # Sorted, so that the result does not depend on the order of the configurations.
    return Categories(name, _sorted_numbers(sorted(values.values(), key=repr)))


def _sorted_numbers(options: Sequence[Value]) -> tuple[Value, ...]:
    numbers = [option for option in options if isinstance(option, (int, float)) and not isinstance(option, bool)]
    return tuple(sorted(numbers)) if len(numbers) == len(options) else tuple(options)
