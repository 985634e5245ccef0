"""Search by a model of what was told: what TPE and the Gaussian process share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from optuna.samplers import BaseSampler

from onefold.search.draws import draw, seed_for, spread
from onefold.search.level import Coded, Level
from onefold.search.optuna_study import Axes, within
from onefold.search.searcher import Observation
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space

MOST_BLIND = 10  # a model of so few results is already better than none


class ModelledSearcher(ABC):
    """Fits a model to the highest level that has `enough` results, as BOHB does; spreads its draws while none has.

    Enough is the number of parameters that vary plus two, ten at the most. Trials that were asked for and not told yet
    are places that the model keeps away from; a failed trial counts as the worst of the results. Every draw has a seed
    of its own, so that nothing but what was told and what is under way is carried from one to the next: `recall` draws
    nothing.
    """

    whole = False  # whether the model needs a value for every parameter, active or not

    def __init__(self, space: Space, seed: int = 0, goals: int = 1) -> None:
        self._space = space
        self._seed = seed
        self._goals = goals
        self._axes = Axes(space)
        self.enough = min(len(self._axes.varying) + 2, MOST_BLIND)
        self._levels: dict[int, Level] = {}
        self._pending: dict[int, Config] = {}
        self._failed: list[Config] = []

    def ask(self, number: int, attempt: int = 0) -> Config:
        level = self._best_known()
        sampler = self._sampler(seed_for(self._seed, number, attempt), attempt) if level else None
        if level is not None and sampler is not None:
            config = self._propose(level, sampler)
        elif attempt == 0:
            config = spread(self._space, self._seed, number)
        else:
            config = draw(self._space, self._seed, number, attempt)
        self.assume(number, config)
        return config

    def tell(self, observation: Observation) -> None:
        self._release(observation.trial)
        losses = observation.losses
        if losses is None or not all(math.isfinite(loss) for loss in losses):
            self._failed.append(observation.config)
            for level in self._levels.values():
                level.reject(self._coded(observation.config))
            return
        level = self._level(observation.level)
        violation = within(observation.violation)
        if not level.correct(observation.trial, violation):
            level.learn(observation.trial, self._coded(observation.config), [within(x) for x in losses], violation)

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:  # noqa: ARG002 - no draw is repeated
        self.assume(number, config)

    def assume(self, number: int, config: Config) -> None:
        """Trial `number` is under way with `config`, whatever was proposed for it."""
        self._release(number)
        self._pending[number] = config
        for level in self._levels.values():
            level.avoid(self._coded(config), number)

    @abstractmethod
    def _sampler(self, seed: int, attempt: int) -> BaseSampler | None:
        """What proposes this draw; None when it should be random."""

    def _propose(self, level: Level, sampler: BaseSampler) -> Config:
        return level.proposal(sampler, self._axes, whole=self.whole)

    def _best_known(self) -> Level | None:
        able = (level for _, level in sorted(self._levels.items(), reverse=True) if level.ready)
        return next(able, None)

    def _level(self, number: int) -> Level:
        if number not in self._levels:
            level = self._levels[number] = Level(self._goals, self._axes.distributions, self.enough)
            for config in self._failed:
                level.reject(self._coded(config))
            for trial, config in self._pending.items():
                level.avoid(self._coded(config), trial)
        return self._levels[number]

    def _release(self, number: int) -> None:
        if self._pending.pop(number, None) is not None:
            for level in self._levels.values():
                level.release(number)

    def _coded(self, config: Config) -> Coded:
        return self._axes.coded(self._axes.filled(config) if self.whole else config)
