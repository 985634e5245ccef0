"""Bayesian optimization of alpha, the weight of gain against speed, during a retraining.

Implemented here in a few lines, since importing a searcher of `onefold.search` would take 90 MB during a retraining.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MICRO_WINDOWS_PER_TRIAL = 3
FIRST_ALPHAS = (0.5, 0.9, 0.1)
GRID = np.linspace(0.0, 1.0, 41)
LENGTH_SCALE = 0.3
NOISE = 0.3  # standard deviation of gains, relative to that of all gains

Vector = NDArray[np.float64]


class AlphaSearch:
    """Propose a value of alpha for the next micro-windows, given the gains of the previous ones."""

    def __init__(self) -> None:
        self.alpha = FIRST_ALPHAS[0]
        self._tried: list[float] = []
        self._results: list[float] = []
        self._gains: list[float] = []

    def tell(self, gain_per_s: float) -> float:
        """Record the gain of a micro-window and return alpha for the next one."""
        self._gains.append(gain_per_s)
        if len(self._gains) >= MICRO_WINDOWS_PER_TRIAL:
            self._tried.append(self.alpha)
            self._results.append(sum(self._gains) / len(self._gains))
            self._gains = []
            self.alpha = self._propose()
        return self.alpha

    def _propose(self) -> float:
        if len(self._tried) < len(FIRST_ALPHAS):
            return FIRST_ALPHAS[len(self._tried)]
        mean, deviation = predict(np.array(self._tried), np.array(self._results), GRID)
        return float(GRID[np.argmax(expected_improvement(mean, deviation, mean.max()))])


def predict(tried: Vector, results: Vector, points: Vector) -> tuple[Vector, Vector]:
    """Return mean and standard deviation of a Gaussian process at some points, in standard units of the results."""
    spread = results.std()
    scaled = (results - results.mean()) / (spread if spread > 0 else 1.0)
    covariance = _kernel(tried, tried) + NOISE**2 * np.eye(len(tried))
    across = _kernel(points, tried)
    solved = np.linalg.solve(covariance, across.T)
    variance = np.maximum(1.0 - np.einsum("ij,ji->i", across, solved), 1e-12)
    return across @ np.linalg.solve(covariance, scaled), np.sqrt(variance)


def expected_improvement(mean: Vector, deviation: Vector, best: float) -> Vector:
    """Return by how much each point is expected to exceed the best one."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
    return np.asarray((mean - best) * below + deviation * density)


def _kernel(first: Vector, second: Vector) -> Vector:
    return np.asarray(np.exp(-0.5 * ((first[:, None] - second[None, :]) / LENGTH_SCALE) ** 2))
