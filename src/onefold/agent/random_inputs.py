"""Random inputs for models that come without samples."""

from __future__ import annotations

from typing import Any

import numpy as np

DYNAMIC_SIZE = 1  # of a dynamic dimension other than the batch
_FLOATS = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2"}


def random_input(description: Any, batch_size: int) -> np.ndarray[Any, Any]:
    """Return an array for one input of a model, described as in `InferenceSession.get_inputs()`.

    Raises ValueError if the model has a fixed batch size other than `batch_size`.
    """
    shape = [size if isinstance(size, int) and size > 0 else DYNAMIC_SIZE for size in description.shape]
    if shape and not isinstance(description.shape[0], int):
        shape[0] = batch_size
    elif shape and shape[0] != batch_size:
        raise ValueError(
            f"the model has a fixed batch size of {shape[0]}, not {batch_size}; export it with a dynamic first axis"
        )
    if description.type in _FLOATS:
        return np.random.default_rng(0).standard_normal(shape).astype(_FLOATS[description.type])
    # Integers may be indices into an embedding table; 0 is always a valid index.
    return np.zeros(shape, description.type.removeprefix("tensor(").removesuffix(")"))
