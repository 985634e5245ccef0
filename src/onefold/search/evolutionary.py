"""Evolutionary search: what CMA-ES and NSGA-II share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import optuna
from optuna.samplers import BaseSampler

from onefold.search.optuna_study import SpaceCodec, clamped, create_study
from onefold.search.samples import derive_seed
from onefold.search.searcher import Observation
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space


class EvolutionarySearcher(ABC):
    """Learn one result per trial: the first one, which is that of its lowest level.

    Every individual has a value for each parameter; the configuration holds the active ones. The generations live in
    an optuna study, so `recall` replays earlier proposals, at a few milliseconds a trial.
    """

    def __init__(self, space: Space, seed: int = 0, goals: int = 1) -> None:
        self._space = space
        self._seed = seed
        self._goals = goals
        self._codec = SpaceCodec(space)
        self._study = create_study(goals)
        self._asked: set[int] = set()
        self._open: dict[int, optuna.Trial] = {}

    def ask(self, number: int, attempt: int = 0) -> Config:
        self._abandon(number)
        self._study.sampler = self._sampler(derive_seed(self._seed, number, attempt), attempt)
        trial = self._study.ask()
        config = self._codec.suggest(trial, with_inactive=True)
        self._asked.add(number)
        self._open[number] = trial
        return config

    def tell(self, observation: Observation) -> None:
        is_valid = observation.losses is not None and all(math.isfinite(loss) for loss in observation.losses)
        losses = [clamped(loss) for loss in observation.losses or ()] if is_valid else None
        violation = clamped(observation.violation)
        trial = self._open.pop(observation.trial, None)
        if trial is not None:
            self._study.tell(trial, self._fitness(trial, losses, violation))
        elif observation.trial not in self._asked:
            self._asked.add(observation.trial)
            self._adopt(observation.config, losses, violation)

    def recall(self, number: int, config: Config, attempt: int = 0) -> None:  # noqa: ARG002 - the draws are repeated
        for step in range(attempt + 1):
            self.ask(number, step)

    @abstractmethod
    def _sampler(self, seed: int, attempt: int) -> BaseSampler:
        """Return the sampler that proposes this draw."""

    @abstractmethod
    def _fitness(self, trial: optuna.Trial, losses: list[float] | None, violation: float) -> Sequence[float]:
        """Return the values of a trial; a failed one is worse than one that violates the requirements."""

    @abstractmethod
    def _adopt(self, config: Config, losses: list[float] | None, violation: float) -> None:
        """Learn from a trial that the searcher did not propose."""

    def _abandon(self, number: int) -> None:
        trial = self._open.pop(number, None)
        if trial is not None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
