"""NSGA-II: a population that approximates the Pareto front of several goals."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import NSGAIISampler
from optuna.samplers.nsgaii import BLXAlphaCrossover, PolynomialMutation

from onefold.search.evolutionary import EvolutionarySearcher
from onefold.search.optuna_study import MAX_VALUE, REQUIREMENT, FixedSpace, without_warnings
from onefold.search.samples import MODEL_ATTEMPTS
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space

POPULATION = 8  # small, since a study has tens of trials, not thousands


class Nsga2Searcher(EvolutionarySearcher):
    """Cross over and mutate the best of a generation; the first generation is random.

    Results that violate the requirements rank below all that meet them, and failures last.
    """

    def __init__(self, space: Space, seed: int = 0, goals: int = 1, *, population: int = POPULATION) -> None:
        super().__init__(space, seed, goals)
        self._population = population

    def _sampler(self, seed: int, attempt: int) -> NSGAIISampler:
        return without_warnings(
            lambda: _Nsga2OverSpace(self._codec.varying, self._population, seed, mutates_all=attempt >= MODEL_ATTEMPTS)
        )

    def _fitness(self, trial: optuna.Trial, losses: list[float] | None, violation: float) -> Sequence[float]:
        trial.set_constraint(REQUIREMENT, MAX_VALUE if losses is None else violation)
        return [0.0] * self._goals if losses is None else losses

    def _adopt(self, config: Config, losses: list[float] | None, violation: float) -> None:
        sampler = self._sampler(0, 0)
        self._study.sampler = sampler
        self._study.enqueue_trial(self._codec.encode(self._codec.fill_inactive(config)))
        trial = self._study.ask()
        self._codec.suggest(trial, with_inactive=True)
        # A trial that the sampler did not create joins the current generation.
        sampler.get_trial_generation(self._study, self._study.get_trials(deepcopy=False)[-1])
        self._study.tell(trial, self._fitness(trial, losses, violation))


class _Nsga2OverSpace(FixedSpace, NSGAIISampler):
    """NSGA-II of optuna over all parameters that vary."""

    def __init__(self, varying: dict[str, BaseDistribution], population: int, seed: int, *, mutates_all: bool) -> None:
        super().__init__(
            varying,
            population_size=population,
            seed=seed,
            crossover=BLXAlphaCrossover(),
            # If children only repeat known configurations, mutate every parameter at random.
            mutation=None if mutates_all else PolynomialMutation(),
            mutation_prob=1.0 if mutates_all else None,
        )
