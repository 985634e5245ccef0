"""The inputs of a model, as the runtimes that serve it take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onefold.vocabulary.errors import ModelError


def model_inputs(values: Sequence[Any], names: Sequence[str], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    """Return one contiguous array per input, converted to its type where no information is lost.

    Raises:
        ModelError: There are too few or too many.
        ValueError: They have different numbers of samples.
        TypeError: A type cannot be converted.
    """
    if len(values) != len(names):
        raise ModelError(f"the model takes {len(names)} inputs ({', '.join(names)}), got {len(values)}")
    arrays = [np.asarray(value).astype(dtype, "C", "same_kind", copy=False) for value, dtype in zip(values, dtypes)]
    if any(len(array) != len(arrays[0]) for array in arrays):
        raise ValueError(f"the inputs have different numbers of samples: {[len(array) for array in arrays]}")
    return arrays
