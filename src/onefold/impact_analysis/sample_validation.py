"""Validate samples of measured values before statistics are computed from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import InputError

FloatArray = NDArray[np.float64]
ROUNDING = 1e-12  # relative spread that summation order alone can cause


def checked_sample(values: Sequence[float] | FloatArray, what: str, min_size: int = 1) -> FloatArray:
    """Return the values as a one-dimensional array.

    Raises InputError, with `what` as their name, unless there are at least `min_size` values and all are finite.
    """
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers, but got {values!r}") from None
    if numbers.ndim != 1:
        raise InputError(f"{what} must be one-dimensional, but got the shape {numbers.shape}")
    if len(numbers) < min_size:
        raise InputError(f"{what} must have at least {min_size} values, but got {len(numbers)}; measure more models")
    if not np.isfinite(numbers).all():
        invalid = numbers[~np.isfinite(numbers)][0]
        raise InputError(f"{what} must be finite, but got {invalid}; leave out models without a result")
    return numbers


def check_same_length(first: FloatArray, second: FloatArray, what: str) -> None:
    """Raise InputError unless paired samples have the same length."""
    if len(first) != len(second):
        raise InputError(f"{what} must have the same length, but got {len(first)} and {len(second)}")


def check_positive(numbers: FloatArray, what: str) -> FloatArray:
    """Return the numbers; raises InputError unless all are above 0, so that relative differences are defined."""
    if (numbers <= 0).any():
        raise InputError(f"{what} must be above 0 for relative differences, but got {numbers.min()}; leave it out")
    return numbers


def is_constant(numbers: FloatArray) -> bool:
    """Return whether the values are equal up to rounding."""
    return len(numbers) == 0 or bool(np.ptp(numbers) <= ROUNDING * np.abs(numbers).max())
