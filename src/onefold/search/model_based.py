"""Model-based search: what TPE and the Gaussian process share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from optuna.samplers import BaseSampler

from onefold.search.optuna_study import SpaceCodec, clamped
from onefold.search.samples import derive_seed, quasirandom_config, random_config
from onefold.search.searcher import Observation
from onefold.search.surrogate import Coded, SurrogateData
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space

MAX_STARTUP_RESULTS = 10  # with so many results a model is better than none, whatever the dimension


class ModelBasedSearcher(ABC):
    """Fit a model to the highest level with `min_results` results, as BOHB does; sample quasi-randomly before.

    `min_results` is the number of parameters that vary plus two, ten at the most. The model avoids configurations that
    are still running (constant liar), and a failed trial counts as the worst result. Every draw has its own seed, so
    that only results and running trials carry over from one to the next, and `recall` draws nothing.
    """

    needs_inactive = False  # whether the model needs values of inactive parameters, too

    def __init__(self, space: Space, seed: int = 0, goals: int = 1) -> None:
        self._space = space
        self._seed = seed
        self._goals = goals
        self._codec = SpaceCodec(space)
        self.min_results = min(len(self._codec.varying) + 2, MAX_STARTUP_RESULTS)
        self._levels: dict[int, SurrogateData] = {}
        self._running: dict[int, Config] = {}
        self._failed: list[Config] = []

    def ask(self, number: int, attempt: int = 0) -> Config:
        data = self._highest_ready()
        sampler = self._sampler(derive_seed(self._seed, number, attempt), attempt) if data else None
        if data is not None and sampler is not None:
            config = self._propose(data, sampler)
        elif attempt == 0:
            config = quasirandom_config(self._space, self._seed, number)
        else:
            config = random_config(self._space, self._seed, number, attempt)
        self.set_running(number, config)
        return config

    def tell(self, observation: Observation) -> None:
        self._end_run(observation.trial)
        losses = observation.losses
        if losses is None or not all(math.isfinite(loss) for loss in losses):
            self._failed.append(observation.config)
            for level in self._levels.values():
                level.add_failure(self._coded(observation.config))
            return
        level = self._level(observation.level)
        violation = clamped(observation.violation)
        if not level.correct(observation.trial, violation):
            coded = self._coded(observation.config)
            level.add_result(observation.trial, coded, [clamped(loss) for loss in losses], violation)

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:  # noqa: ARG002 - nothing is drawn again
        self.set_running(number, config)

    def set_running(self, number: int, config: Config) -> None:
        """Record that trial `number` runs with `config`, whatever was proposed for it."""
        self._end_run(number)
        self._running[number] = config
        for level in self._levels.values():
            level.add_running(number, self._coded(config))

    @abstractmethod
    def _sampler(self, seed: int, attempt: int) -> BaseSampler | None:
        """Return the sampler that proposes this draw; None for a random one."""

    def _propose(self, data: SurrogateData, sampler: BaseSampler) -> Config:
        return data.propose(sampler, self._codec, with_inactive=self.needs_inactive)

    def _highest_ready(self) -> SurrogateData | None:
        ready = (data for _, data in sorted(self._levels.items(), reverse=True) if data.is_ready)
        return next(ready, None)

    def _level(self, number: int) -> SurrogateData:
        if number not in self._levels:
            level = self._levels[number] = SurrogateData(self._goals, self._codec.distributions, self.min_results)
            for config in self._failed:
                level.add_failure(self._coded(config))
            for trial, config in self._running.items():
                level.add_running(trial, self._coded(config))
        return self._levels[number]

    def _end_run(self, number: int) -> None:
        if self._running.pop(number, None) is not None:
            for level in self._levels.values():
                level.remove_running(number)

    def _coded(self, config: Config) -> Coded:
        return self._codec.encode(self._codec.fill_inactive(config) if self.needs_inactive else config)
