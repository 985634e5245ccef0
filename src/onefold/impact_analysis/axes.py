"""Hyperparameters as axes: where a configuration lies on each, and how much of each a cell is.

A tree is the same everywhere between two of its cuts, and a category has nothing between it and the next. So an axis is
made of cells, each with a point that stands for it and with its share of all that may be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onefold.impact_analysis.sample_validation import Numbers
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Value
from onefold.vocabulary.space import Choice, Int, Parameter, Space

ABSENT = -2.0  # where a range has what is not there: so far below 0 that a cut between the two is below 0 as well
Configuration = Mapping[str, Value]


class Axis(Protocol):
    """One hyperparameter."""

    @property
    def name(self) -> str:
        """That of the hyperparameter."""

    def place(self, config: Configuration) -> float:
        """Where a configuration lies."""

    def cells(self, cuts: Numbers) -> tuple[Numbers, Numbers]:
        """The points and the shares, which add up to 1, of cells that none of the cuts divides."""


@dataclass(frozen=True, slots=True)
class Categories:
    """One of some options, all as likely; being absent, where that occurs, is an option like the others."""

    name: str
    options: tuple[Value, ...]
    absent: bool = False

    def place(self, config: Configuration) -> float:
        """The number of the option; -1 for none."""
        if self.name not in config:
            return -1.0
        value = config[self.name]
        for number, option in enumerate(self.options):
            if type(value) is type(option) and value == option:  # as a Choice sees it: 1 and True differ
                return float(number)
        raise InputError(f"{self.name} must be one of {self.options!r}, but got {value!r}")

    def cells(self, cuts: Numbers) -> tuple[Numbers, Numbers]:  # noqa: ARG002 - a category cannot be divided
        """One for each option, all of the same share."""
        points = np.arange(-1.0 if self.absent else 0.0, len(self.options))
        return points, np.full(len(points), 1.0 / len(points))


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two bounds, spread evenly over them or their magnitudes; `absent` is how often it is missing."""

    name: str
    low: float
    high: float
    log: bool = False
    absent: float = 0.0

    def place(self, config: Configuration) -> float:
        """How much of the range lies below, from 0 to 1; ABSENT where it is not there."""
        if self.name not in config:
            return ABSENT
        value = config[self.name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            raise InputError(f"{self.name} must lie between {self.low} and {self.high}, but got {value!r}")
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return (at - low) / (high - low)

    def cells(self, cuts: Numbers) -> tuple[Numbers, Numbers]:
        """What lies between neighbouring cuts, and one more for being absent."""
        edges = np.concatenate([[0.0], np.unique(cuts[(cuts > 0) & (cuts < 1)]), [1.0]])
        points, shares = (edges[1:] + edges[:-1]) / 2, np.diff(edges) * (1 - self.absent)
        if not self.absent:
            return points, shares
        return np.concatenate([[ABSENT], points]), np.concatenate([[self.absent], shares])


def axes_of(configs: Sequence[Configuration], space: Space | None = None) -> tuple[Axis, ...]:
    """The axes of a space, or of whatever the configurations hold where none is given.

    A range of the space is absent as often as in the configurations. Without a space each value that was seen is a
    category, so that it does not matter on which scale numbers were drawn; numbers are in their order.
    """
    if space is not None:
        return tuple(_axis(name, parameter, configs) for name, parameter in space.parameters.items())
    names = dict.fromkeys(name for config in configs for name in config)
    return tuple(_seen(name, configs) for name in names)


def _axis(name: str, parameter: Parameter, configs: Sequence[Configuration]) -> Axis:
    missing = sum(name not in config for config in configs)
    if isinstance(parameter, Choice):
        return Categories(name, _in_order(parameter.options), missing > 0)
    if parameter.low == parameter.high:
        return Categories(name, (parameter.low,), missing > 0)
    # A whole number stands for everything that is rounded to it.
    margin = 0.5 if isinstance(parameter, Int) else 0.0
    low, high = parameter.low - margin, parameter.high + margin
    return Range(name, low, high, parameter.log, missing / len(configs))


def _seen(name: str, configs: Sequence[Configuration]) -> Categories:
    values = {(type(value), value): value for config in configs for key, value in config.items() if key == name}
    # Sorted, so that the order of the configurations does not matter.
    options = _in_order(sorted(values.values(), key=repr))
    return Categories(name, options, any(name not in config for config in configs))


def _in_order(options: Sequence[Value]) -> tuple[Value, ...]:
    numbers = [option for option in options if isinstance(option, (int, float)) and not isinstance(option, bool)]
    return tuple(sorted(numbers)) if len(numbers) == len(options) else tuple(options)
