"""What is known at one level, as a model sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from onefold.records import Config
from onefold.search.optuna_study import REQUIRED, Axes, silent_study

Coded = Mapping[str, float]


class Level:
    """An optuna study that only grows: results, failures and what is under way."""

    def __init__(self, goals: int, distributions: Mapping[str, BaseDistribution], enough: int) -> None:
        self._study = silent_study(goals)
        self._distributions = distributions
        self._enough = enough
        self._avoided: dict[int, int] = {}  # our number of a trial under way -> optuna's
        self._places = count()
        self._constrained = False
        self._results = 0
        self._worst = [-math.inf] * goals
        self._rejected: list[Coded] = []  # until it is known what a bad result is

    @property
    def ready(self) -> bool:
        """Whether there is enough to fit a model."""
        return self._results >= self._enough

    def proposal(self, sampler: BaseSampler, axes: Axes, *, whole: bool) -> Config:
        """What the sampler would try next. The trial made for the question is thrown away."""
        self._study.sampler = sampler
        trial = self._study.ask()
        next(self._places)
        config = axes.suggested(trial, whole=whole)
        self._study.tell(trial, state=TrialState.FAIL)
        return config

    def learn(self, coded: Coded, losses: Sequence[float], violation: float) -> None:
        """Adds a result."""
        if violation > 0 and not self._constrained:
            # A model takes constraints of all trials or of none, and those of none are fitted faster.
            self._constrained = True
            for trial in self._study.get_trials(deepcopy=False):
                trial.set_constraint(REQUIRED, 0.0)
        self._complete(coded, losses, violation)
        self._results += 1
        self._worst = [max(pair) for pair in zip(self._worst, losses)]
        if self.ready:
            while self._rejected:
                self._complete(self._rejected.pop(0), self._worst)

    def reject(self, coded: Coded) -> None:
        """Adds a failure, as bad as the worst result."""
        if self.ready:
            self._complete(coded, self._worst)
        else:
            self._rejected.append(coded)

    def avoid(self, coded: Coded, number: int) -> None:
        """Keeps the model away from a place while trial `number` is under way."""
        self._avoided[number] = self._add(TrialState.RUNNING, coded)

    def release(self, number: int) -> None:
        """The trial is no longer under way."""
        self._study.tell(self._avoided.pop(number), state=TrialState.FAIL)

    def _complete(self, coded: Coded, losses: Sequence[float], violation: float = 0.0) -> None:
        self._add(TrialState.COMPLETE, coded, losses, {REQUIRED: violation} if self._constrained else None)

    def _add(
        self,
        state: TrialState,
        coded: Coded,
        losses: Sequence[float] | None = None,
        constraints: dict[str, float] | None = None,
    ) -> int:
        distributions = {name: self._distributions[name] for name in coded}
        self._study.add_trial(
            create_trial(
                state=state, params=dict(coded), distributions=distributions, values=losses, constraints=constraints
            )
        )
        return next(self._places)
