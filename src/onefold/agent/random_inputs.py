"""Random inputs for models that come without samples."""

from __future__ import annotations

import numpy as np

from onefold.agent.forms import Argument
from onefold.agent.loaded_model import Array

DYNAMIC_SIZE = 1  # of a dynamic dimension other than the batch


def random_input(argument: Argument, batch_size: int) -> Array:
    """Return an array for one input of a model. The first dimension is the batch, whatever size the model fixes."""
    shape = [DYNAMIC_SIZE if size is None else size for size in argument.shape]
    if shape:
        shape[0] = batch_size
    if argument.dtype.startswith("float"):
        return np.random.default_rng(0).standard_normal(shape).astype(argument.dtype)
    # Integers may be indices into an embedding table; 0 is always a valid index.
    return np.zeros(shape, argument.dtype)
