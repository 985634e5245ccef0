"""CMA-ES: a cloud of numbers that moves and stretches towards lower losses; for many trials of many numbers."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler

from onefold.search.draws import PATIENCE
from onefold.search.evolved import EvolvedSearcher
from onefold.search.optuna_study import silent
from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space

FAILED = 3.0
FEWEST_KNOWN = 10  # the best tenth of what is known gives the first place


class CmaEsSearcher(EvolvedSearcher):
    """Evolves all numbers together, whole ones with a margin; categories are drawn by TPE.

    Only the order of results counts for it, so that requirements and failures are told as losses. What was known
    before the study gives the cloud its first place and shape.
    """

    def __init__(self, space: Space, seed: int = 0, goals: int = 1) -> None:
        if goals != 1:
            raise ObjectiveError(f"cmaes follows one goal, but got {goals}; use nsga2, tpe or gp for several")
        super().__init__(space, seed, goals)
        self._numbers = {
            name: dist for name, dist in self._axes.varying.items() if not isinstance(dist, CategoricalDistribution)
        }
        self._known: list[optuna.trial.FrozenTrial] = []

    def _sampler(self, seed: int, attempt: int) -> BaseSampler:
        if attempt >= PATIENCE:
            return RandomSampler(seed=seed)
        return silent(lambda: _FixedCmaEs(self._numbers, seed, self._known))

    def _fitness(self, trial: optuna.Trial, losses: list[float] | None, violation: float) -> Sequence[float]:  # noqa: ARG002
        return [_rank(losses, violation)]

    def _take_over(self, config: Config, losses: list[float] | None, violation: float) -> None:
        coded = self._axes.coded(self._axes.filled(config))
        known = optuna.trial.create_trial(
            params={name: coded[name] for name in self._numbers},
            distributions=dict(self._numbers),
            value=_rank(losses, violation),
        )
        self._known.append(known)


class _FixedCmaEs(CmaEsSampler):
    """optuna's sampler over a space that is known beforehand, so that no trial is lost to finding it out."""

    def __init__(self, numbers: dict[str, BaseDistribution], seed: int, known: list[optuna.trial.FrozenTrial]) -> None:
        super().__init__(
            seed=seed,
            n_startup_trials=0,
            with_margin=True,
            independent_sampler=TPESampler(seed=seed, multivariate=False),
            warn_independent_sampling=False,
            source_trials=known if len(known) >= FEWEST_KNOWN else None,
        )
        self._numbers = numbers

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: optuna.trial.FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return self._numbers


def _rank(losses: list[float] | None, violation: float) -> float:
    """Any loss in (-1, 1), any violation in (1, 2], a failure above."""
    if losses is None:
        return FAILED
    return losses[0] / (1 + abs(losses[0])) if violation <= 0 else 2 - 1 / (1 + violation)
