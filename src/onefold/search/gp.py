"""Gaussian process: sample-efficient on smooth losses, at a few hundred milliseconds a draw."""

from __future__ import annotations

from optuna.samplers import BaseSampler, GPSampler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from onefold.search.model_based import ModelBasedSearcher
from onefold.search.surrogate import SurrogateData
from onefold.vocabulary.records import Config


class GpSearcher(ModelBasedSearcher):
    """Propose the configuration with the largest expected improvement under a Gaussian process.

    Inactive parameters get random values, and so turn out to be irrelevant. The maximum is the same at every attempt,
    so an attempt after the first is a random draw.
    """

    needs_inactive = True

    def _sampler(self, seed: int, attempt: int) -> GPSampler | None:
        return GPSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False) if attempt == 0 else None

    def _propose(self, data: SurrogateData, sampler: BaseSampler) -> Config:
        # The matrices are small: more threads than one only contend with each other and with the trials.
        with threadpool_limits(1):
            return super()._propose(data, sampler)
