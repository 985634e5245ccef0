"""The bridge to optuna: spaces as distributions, configurations as numbers, and studies in memory."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler

from onefold.search.samples import derive_seed
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.records import Config, Value
from onefold.vocabulary.space import Choice, Float, Int, Parameter, Space

Sampler = TypeVar("Sampler", bound=BaseSampler)
REQUIREMENT = "required"  # the name of the only constraint: the violation of an observation
MAX_VALUE = 1e30  # beyond it squares and sums of losses overflow


class SpaceCodec:
    """Encode configurations of a space for optuna and decode its suggestions.

    A choice is encoded as the index of its option, since optuna takes 1, 1.0 and True for the same. Options that are
    numbers in ascending order (widths, batch sizes) are ordinal; all others are categorical.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._parameters = space.parameters
        self._order = space.in_order()
        self.distributions = {name: _distribution(parameter) for name, parameter in self._parameters.items()}

    @property
    def varying(self) -> dict[str, BaseDistribution]:
        """Return the distributions with more than one value."""
        return {name: dist for name, dist in self.distributions.items() if not dist.single()}

    def suggest(self, trial: optuna.Trial, *, with_inactive: bool) -> Config:
        """Return what the sampler proposes; `with_inactive` makes it propose inactive parameters, too."""
        values: dict[str, Value] = {}
        for name in self._order:
            if with_inactive or self._space.is_active(name, values):
                parameter = self._parameters[name]
                values[name] = _decoded(parameter, _suggestion(trial, name, self.distributions[name]))
        return self._space.config(values)

    def encode(self, config: Mapping[str, Value]) -> dict[str, float]:
        """Return the parameters of a configuration as numbers on their distributions."""
        return {name: self._encode_value(name, value) for name, value in config.items()}

    def fill_inactive(self, config: Config) -> dict[str, Value]:
        """Return the configuration with a random value for every inactive parameter, seeded by the configuration.

        With a fixed value a model would take all others for unexplored.
        """
        rng = random.Random(derive_seed(0, config.digest))
        drawn = {name: parameter.draw(rng) for name, parameter in self._parameters.items()}
        return {**drawn, **config}

    def _encode_value(self, name: str, value: Value) -> float:
        parameter = self._parameters.get(name)
        if parameter is None or not parameter.contains(value):
            raise SpaceError(f"the configuration is not of this searcher's space: {name}={value!r}")
        if isinstance(parameter, Choice):
            return next(i for i, o in enumerate(parameter.options) if type(o) is type(value) and o == value)
        return value  # type: ignore[return-value]


class FixedSpace(BaseSampler):
    """Makes a sampler use the given distributions; on its own it would spend a trial to infer them. Mix it in first."""

    def __init__(self, distributions: dict[str, BaseDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._distributions = distributions

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return self._distributions


def create_study(goals: int) -> optuna.Study:
    """Return a study in memory that minimizes `goals` losses."""
    # Optuna warns about numerical problems that it then solves by itself.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=optuna.storages.InMemoryStorage(),
        study_name="onefold",
        sampler=RandomSampler(seed=0),
        pruner=optuna.pruners.NopPruner(),
        directions=["minimize"] * goals,
    )


def without_warnings(build: Callable[[], Sampler]) -> Sampler:
    """Return the sampler that `build` creates, without optuna's warning that an option is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return build()


def clamped(value: float) -> float:
    """Return the value within what optuna's models can square and add."""
    return min(max(value, -MAX_VALUE), MAX_VALUE)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, Float):
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    if isinstance(parameter, Int):
        return IntDistribution(parameter.low, parameter.high, log=parameter.log)
    count = len(parameter.options)
    return IntDistribution(0, count - 1) if _is_ordinal(parameter) else CategoricalDistribution(range(count))


def _is_ordinal(choice: Choice) -> bool:
    numbers = [option for option in choice.options if isinstance(option, (int, float)) and not isinstance(option, bool)]
    return len(numbers) == len(choice.options) and all(low < high for low, high in pairwise(numbers))


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
