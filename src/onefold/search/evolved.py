"""Search by generations: what CMA-ES and NSGA-II share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import optuna
from optuna.samplers import BaseSampler

from onefold.search.draws import seed_for
from onefold.search.optuna_study import Axes, silent_study, within
from onefold.search.searcher import Observation
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space


class EvolvedSearcher(ABC):
    """Learns one result per trial, the first that is told, which is that of its lowest level.

    Every individual has a value for each parameter; the configuration holds the active ones. The generations live in
    an optuna study, so `recall` asks again for what was asked before: that takes a few milliseconds a trial.
    """

    def __init__(self, space: Space, seed: int = 0, goals: int = 1) -> None:
        self._space = space
        self._seed = seed
        self._goals = goals
        self._axes = Axes(space)
        self._study = silent_study(goals)
        self._asked: set[int] = set()
        self._open: dict[int, optuna.Trial] = {}

    def ask(self, number: int, attempt: int = 0) -> Config:
        self._give_up(number)
        self._study.sampler = self._sampler(seed_for(self._seed, number, attempt), attempt)
        trial = self._study.ask()
        config = self._axes.suggested(trial, whole=True)
        self._asked.add(number)
        self._open[number] = trial
        return config

    def tell(self, observation: Observation) -> None:
        able = observation.losses is not None and all(math.isfinite(loss) for loss in observation.losses)
        losses = [within(loss) for loss in observation.losses or ()] if able else None
        violation = within(observation.violation)
        trial = self._open.pop(observation.trial, None)
        if trial is not None:
            self._study.tell(trial, self._fitness(trial, losses, violation))
        elif observation.trial not in self._asked:
            self._asked.add(observation.trial)
            self._take_over(observation.config, losses, violation)

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:  # noqa: ARG002 - the same draws again
        for step in range(attempt + 1):
            self.ask(number, step)

    @abstractmethod
    def _sampler(self, seed: int, attempt: int) -> BaseSampler:
        """What proposes this draw."""

    @abstractmethod
    def _fitness(self, trial: optuna.Trial, losses: list[float] | None, violation: float) -> Sequence[float]:
        """What the study is told of a trial: a failed one is worse than one that misses the requirements."""

    @abstractmethod
    def _take_over(self, config: Config, losses: list[float] | None, violation: float) -> None:
        """Learns from a trial that was never asked for."""

    def _give_up(self, number: int) -> None:
        trial = self._open.pop(number, None)
        if trial is not None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
