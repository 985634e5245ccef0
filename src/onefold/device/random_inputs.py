"""Inputs for a model that comes without samples: noise, of the shapes that it asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

OPEN = 1  # what a dimension other than the first counts as when the model leaves it open
_FLOATS = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2"}


def random_input(wanted: Any, batch_size: int) -> np.ndarray[Any, Any]:
    """An array for an input as the runtime describes it; ValueError when the model takes another batch size only."""
    shape = [size if isinstance(size, int) and size > 0 else OPEN for size in wanted.shape]
    if shape and not isinstance(wanted.shape[0], int):
        shape[0] = batch_size
    elif shape and shape[0] != batch_size:
        raise ValueError(
            f"it takes batches of {shape[0]} only, not of {batch_size}: export it with an open first dimension"
        )
    if wanted.type in _FLOATS:
        return np.random.default_rng(0).standard_normal(shape).astype(_FLOATS[wanted.type])
    # Whole numbers may be places in a table, and 0 is in every table.
    return np.zeros(shape, wanted.type.removeprefix("tensor(").removesuffix(")"))
