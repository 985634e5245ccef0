"""Gaussian process: the fewest trials for smooth losses, at a few hundred milliseconds a draw."""

from __future__ import annotations

from optuna.samplers import BaseSampler, GPSampler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from onefold.search.level import Level
from onefold.search.modelled import ModelledSearcher
from onefold.vocabulary.records import Config


class GpSearcher(ModelledSearcher):
    """Proposes where a Gaussian process expects the largest improvement.

    Inactive parameters have random values in its eyes, and so turn out not to matter. The best place is the same
    however often it is asked for, so an attempt after the first is a random draw.
    """

    whole = True

    def _sampler(self, seed: int, attempt: int) -> GPSampler | None:
        return GPSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False) if attempt == 0 else None

    def _propose(self, level: Level, sampler: BaseSampler) -> Config:
        # Its matrices are small: more threads than one only get into each other's way, and into that of the trials.
        with threadpool_limits(1):
            return super()._propose(level, sampler)
