"""CMA-ES: for many trials over many numeric parameters."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler

from onefold.search.evolutionary import EvolutionarySearcher
from onefold.search.optuna_study import FixedSpace, without_warnings
from onefold.search.samples import MODEL_ATTEMPTS
from onefold.vocabulary.errors import ObjectiveError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Space

FAILED_RANK = 3.0
MIN_SOURCE_TRIALS = 10  # optuna takes the best tenth of them for the initial mean and covariance


class CmaEsSearcher(EvolutionarySearcher):
    """CMA-ES over all numeric parameters, integers with a margin; categorical ones are sampled by TPE.

    Only the order of results matters to it, so requirements and failures become losses. Results known before the study
    give the initial mean and covariance (WS-CMA-ES).
    """

    def __init__(self, space: Space, seed: int = 0, goals: int = 1) -> None:
        if goals != 1:
            raise ObjectiveError(f"cmaes follows one goal, but got {goals}; use nsga2, tpe or gp for several")
        super().__init__(space, seed, goals)
        self._numbers = {
            name: dist for name, dist in self._codec.varying.items() if not isinstance(dist, CategoricalDistribution)
        }
        self._known: list[optuna.trial.FrozenTrial] = []

    def _sampler(self, seed: int, attempt: int) -> BaseSampler:
        if attempt >= MODEL_ATTEMPTS:
            return RandomSampler(seed=seed)
        return without_warnings(lambda: _CmaEsOverSpace(self._numbers, seed, self._known))

    def _fitness(self, trial: optuna.Trial, losses: list[float] | None, violation: float) -> Sequence[float]:  # noqa: ARG002
        return [_rank(losses, violation)]

    def _adopt(self, config: Config, losses: list[float] | None, violation: float) -> None:
        coded = self._codec.encode(self._codec.fill_inactive(config))
        known = optuna.trial.create_trial(
            params={name: coded[name] for name in self._numbers},
            distributions=dict(self._numbers),
            value=_rank(losses, violation),
        )
        self._known.append(known)


class _CmaEsOverSpace(FixedSpace, CmaEsSampler):
    """CMA-ES of optuna over the numeric parameters of the space."""

    def __init__(self, numbers: dict[str, BaseDistribution], seed: int, known: list[optuna.trial.FrozenTrial]) -> None:
        super().__init__(
            numbers,
            seed=seed,
            n_startup_trials=0,
            with_margin=True,
            independent_sampler=TPESampler(seed=seed, multivariate=False),
            warn_independent_sampling=False,
            source_trials=known if len(known) >= MIN_SOURCE_TRIALS else None,
        )


def _rank(losses: list[float] | None, violation: float) -> float:
    """Map a loss to (-1, 1), a violation to (1, 2], and a failure to a value above."""
    if losses is None:
        return FAILED_RANK
    return losses[0] / (1 + abs(losses[0])) if violation <= 0 else 2 - 1 / (1 + violation)
