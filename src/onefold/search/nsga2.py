"""NSGA-II: a population that spreads along the front of several goals."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import NSGAIISampler
from optuna.samplers.nsgaii import BLXAlphaCrossover, PolynomialMutation

from onefold.search.draws import PATIENCE
from onefold.search.evolved import EvolvedSearcher
from onefold.search.optuna_study import LARGEST, REQUIRED, silent
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space

POPULATION = 8  # small, because a study has tens of trials where the textbook has thousands


class Nsga2Searcher(EvolvedSearcher):
    """Blends and mutates the best of a generation; the first generation is random.

    Results that miss the requirements come after all that keep them, and failures last.
    """

    def __init__(self, space: Space, seed: int = 0, goals: int = 1, *, population: int = POPULATION) -> None:
        super().__init__(space, seed, goals)
        self._population = population

    def _sampler(self, seed: int, attempt: int) -> NSGAIISampler:
        return silent(lambda: _FixedNsga2(self._axes.varying, self._population, seed, afresh=attempt >= PATIENCE))

    def _fitness(self, trial: optuna.Trial, losses: list[float] | None, violation: float) -> Sequence[float]:
        trial.set_constraint(REQUIRED, LARGEST if losses is None else violation)
        return [0.0] * self._goals if losses is None else losses

    def _take_over(self, config: Config, losses: list[float] | None, violation: float) -> None:
        sampler = self._sampler(0, 0)
        self._study.sampler = sampler
        self._study.enqueue_trial(self._axes.coded(self._axes.filled(config)))
        trial = self._study.ask()
        self._axes.suggested(trial, whole=True)
        # A trial that the sampler did not make becomes a member of the present generation.
        sampler.get_trial_generation(self._study, self._study.get_trials(deepcopy=False)[-1])
        self._study.tell(trial, self._fitness(trial, losses, violation))


class _FixedNsga2(NSGAIISampler):
    """optuna's sampler over a space that is known beforehand."""

    def __init__(self, varying: dict[str, BaseDistribution], population: int, seed: int, *, afresh: bool) -> None:
        super().__init__(
            population_size=population,
            seed=seed,
            crossover=BLXAlphaCrossover(),
            # Where children only repeat what is known, every parameter is drawn afresh: that is to mutate at random.
            mutation=None if afresh else PolynomialMutation(),
            mutation_prob=1.0 if afresh else None,
        )
        self._varying = varying

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return self._varying
