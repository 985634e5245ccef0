"""Compare the outputs of a model in two runtimes."""

from __future__ import annotations

import numpy as np

from onefold.agent.loaded_model import Array

AGREEMENT = "agreement"


def relative_difference(output: Array, expected: Array) -> float:
    """Return the largest difference relative to the largest expected value.

    It is infinite for another shape, or where only one of them is NaN.
    """
    if output.shape != expected.shape or not np.array_equal(np.isnan(output), np.isnan(expected)):
        return float("inf")
    exact, wanted = output.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):  # equal infinities have no difference
        largest = np.nanmax(np.abs(wanted), initial=0.0) + 1e-12
        return float(np.nanmax(np.abs(exact - wanted), initial=0.0) / largest)


def agreement(output: Array, expected: Array) -> float:
    """Return the share of samples with the same class; for other outputs, 1 minus the relative error."""
    if expected.ndim == 2 and expected.shape[1] > 1:
        return float((output.argmax(axis=1) == expected.argmax(axis=1)).mean())
    exact, wanted = output.astype(np.float64), expected.astype(np.float64)
    error = np.linalg.norm(exact - wanted) / max(float(np.linalg.norm(wanted)), 1e-12)
    return max(0.0, 1.0 - float(error))
