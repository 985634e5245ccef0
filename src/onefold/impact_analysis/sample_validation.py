"""Values as they came from measuring, made sure of before anything is computed from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import InputError

Numbers = NDArray[np.float64]
ROUNDING = 1e-12  # a spread below this share of the values is what adding them up in another order makes


def measured(values: Sequence[float] | Numbers, what: str, least: int = 1) -> Numbers:
    """The values as one row of numbers; raises InputError unless there are `least` of them and all are finite.

    `what` names them in the error.
    """
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers, but got {values!r}") from None
    if numbers.ndim != 1:
        raise InputError(f"{what} must be one row of numbers, but got the shape {numbers.shape}")
    if len(numbers) < least:
        raise InputError(f"{what} must be at least {least}, but got {len(numbers)}; measure more models first")
    if not np.isfinite(numbers).all():
        bad = numbers[~np.isfinite(numbers)][0]
        raise InputError(f"{what} must be finite, but got {bad}; leave out models without a result")
    return numbers


def together(one: Numbers, other: Numbers, what: str) -> None:
    """Raises InputError unless there is one value of the other kind for each of the one."""
    if len(one) != len(other):
        raise InputError(f"{what} must be as many of either, model by model, but got {len(one)} and {len(other)}")


def constant(numbers: Numbers) -> bool:
    """Whether the values do not differ, but for rounding."""
    return len(numbers) == 0 or bool(np.ptp(numbers) <= ROUNDING * np.abs(numbers).max())
