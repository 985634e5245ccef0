"""TPE: the tree-structured Parzen estimator, over all levels of a multi-fidelity search."""

from __future__ import annotations

from optuna.samplers import TPESampler

from onefold.search.model_based import ModelBasedSearcher
from onefold.search.optuna_study import without_warnings
from onefold.search.samples import MODEL_ATTEMPTS

EI_CANDIDATES = 24


class TpeSearcher(ModelBasedSearcher):
    """Propose the candidate with the largest ratio of good to bad density.

    Parameters that are active together are modeled together. Each attempt chooses among half as many candidates as the
    one before, and so explores more.
    """

    def _sampler(self, seed: int, attempt: int) -> TPESampler | None:
        if attempt >= MODEL_ATTEMPTS:
            return None
        return without_warnings(
            lambda: TPESampler(
                seed=seed,
                n_startup_trials=0,
                n_ei_candidates=EI_CANDIDATES >> attempt,
                multivariate=True,
                group=True,
                constant_liar=True,
            )
        )
