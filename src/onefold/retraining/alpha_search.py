"""Bayesian optimization of alpha, the weight of gain against speed, during a retraining."""

from __future__ import annotations

from onefold.vocabulary.records import Config

MICRO_WINDOWS_PER_TRIAL = 3


class AlphaSearch:
    """Propose an alpha for a few micro-windows and learn from what they gained."""

    def __init__(self, seed: int = 0) -> None:
        from onefold.search.algorithms import create_searcher
        from onefold.vocabulary.space import Float, Space

        self._searcher = create_searcher("gp", Space(alpha=Float(0.0, 1.0)), seed, 1)
        self._number = 0
        self._config: Config = Config(alpha=0.5)
        self._gains: list[float] = []

    def tell(self, gain_per_s: float) -> float:
        """Record the gain of a micro-window and return alpha for the next one."""
        from onefold.search.searcher import Observation

        self._gains.append(gain_per_s)
        if len(self._gains) >= MICRO_WINDOWS_PER_TRIAL:
            self._searcher.tell(Observation(self._number, 1, self._config, (-sum(self._gains) / len(self._gains),)))
            self._number, self._gains = self._number + 1, []
            self._config = self._searcher.ask(self._number)
        return float(self._config["alpha"])  # type: ignore[arg-type]
