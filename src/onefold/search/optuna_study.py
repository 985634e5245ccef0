"""The bridge to optuna: a space as distributions, a configuration as numbers on them, and studies that stay silent."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler

from onefold.search.draws import seed_for
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.records import Config, Value
from onefold.vocabulary.space import Choice, Float, Int, Parameter, Space

Sampler = TypeVar("Sampler", bound=BaseSampler)
REQUIRED = "required"  # the name of the one constraint: what the observation's violation says
LARGEST = 1e30  # beyond it squares and sums of losses overflow


class Axes:
    """The parameters of a space as optuna sees them.

    A choice travels as the position of its option, because optuna takes 1, 1.0 and True for the same. Options that are
    numbers in rising order (widths, batch sizes) are a scale, on which neighbours resemble each other; all others are
    categories.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._parameters = space.parameters
        self._order = space.in_order()
        self.distributions = {name: _distribution(parameter) for name, parameter in self._parameters.items()}

    @property
    def varying(self) -> dict[str, BaseDistribution]:
        """The distributions that leave a choice."""
        return {name: dist for name, dist in self.distributions.items() if not dist.single()}

    def suggested(self, trial: optuna.Trial, *, whole: bool) -> Config:
        """What the sampler proposes, parameter after parameter; `whole` asks for the inactive ones too."""
        values: dict[str, Value] = {}
        for name in self._order:
            if whole or self._space.is_active(name, values):
                parameter = self._parameters[name]
                values[name] = _decoded(parameter, _suggestion(trial, name, self.distributions[name]))
        return self._space.config(values)

    def coded(self, config: Mapping[str, Value]) -> dict[str, float]:
        """The parameters of a configuration as numbers on their distributions."""
        return {name: self._code(name, value) for name, value in config.items()}

    def filled(self, config: Config) -> dict[str, Value]:
        """The configuration with a value for every parameter that is not active in it.

        The values are random, and the same for the same configuration: with one fixed value a model would take
        whatever differs from it for unexplored.
        """
        rng = random.Random(seed_for(0, config.digest))
        drawn = {name: parameter.draw(rng) for name, parameter in self._parameters.items()}
        return {**drawn, **config}

    def _code(self, name: str, value: Value) -> float:
        parameter = self._parameters.get(name)
        if parameter is None or not parameter.contains(value):
            raise SpaceError(f"a searcher learns from configurations of its own space, but got {name}={value!r}")
        if isinstance(parameter, Choice):
            return next(i for i, o in enumerate(parameter.options) if type(o) is type(value) and o == value)
        return value  # type: ignore[return-value]


def silent_study(goals: int) -> optuna.Study:
    """A study in memory that minimises `goals` losses."""
    # Its warnings are about numerical trouble that it mends by itself.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=optuna.storages.InMemoryStorage(),
        study_name="onefold",
        sampler=RandomSampler(seed=0),
        pruner=optuna.pruners.NopPruner(),
        directions=["minimize"] * goals,
    )


def silent(build: Callable[[], Sampler]) -> Sampler:
    """The sampler that `build` makes, without optuna's warning that an option is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return build()


def within(number: float) -> float:
    """A number that optuna's models can square and add."""
    return min(max(number, -LARGEST), LARGEST)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, Float):
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    if isinstance(parameter, Int):
        return IntDistribution(parameter.low, parameter.high, log=parameter.log)
    places = len(parameter.options)
    return IntDistribution(0, places - 1) if _is_scale(parameter) else CategoricalDistribution(range(places))


def _is_scale(choice: Choice) -> bool:
    numbers = [option for option in choice.options if isinstance(option, (int, float)) and not isinstance(option, bool)]
    return len(numbers) == len(choice.options) and all(one < other for one, other in pairwise(numbers))


def _suggestion(trial: optuna.Trial, name: str, dist: BaseDistribution) -> float:
    if isinstance(dist, FloatDistribution):
        return trial.suggest_float(name, dist.low, dist.high, log=dist.log)
    if isinstance(dist, IntDistribution):
        return trial.suggest_int(name, dist.low, dist.high, log=dist.log)
    assert isinstance(dist, CategoricalDistribution)
    return trial.suggest_categorical(name, dist.choices)  # type: ignore[return-value]


def _decoded(parameter: Parameter, code: float) -> Value:
    if isinstance(parameter, Choice):
        return parameter.options[int(code)]
    number = float(code) if isinstance(parameter, Float) else int(code)
    return min(max(number, parameter.low), parameter.high)
