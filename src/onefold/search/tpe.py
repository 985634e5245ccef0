"""TPE: the tree-structured Parzen estimator, over all levels of a multi-fidelity search."""

from __future__ import annotations

from optuna.samplers import TPESampler

from onefold.search.draws import PATIENCE
from onefold.search.modelled import ModelledSearcher
from onefold.search.optuna_study import silent

CANDIDATES = 24


class TpeSearcher(ModelledSearcher):
    """Proposes what looks most like the good results and least like the others.

    Parameters that are active together are drawn together. Each attempt chooses among half as many candidates as the
    one before, and so strays further from the best guess.
    """

    def _sampler(self, seed: int, attempt: int) -> TPESampler | None:
        if attempt >= PATIENCE:
            return None
        return silent(
            lambda: TPESampler(
                seed=seed,
                n_startup_trials=0,
                n_ei_candidates=CANDIDATES >> attempt,
                multivariate=True,
                group=True,
                constant_liar=True,
            )
        )
