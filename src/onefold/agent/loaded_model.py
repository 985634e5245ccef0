"""A model that is loaded in a runtime at a serving point, ready to run batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from onefold.agent.forms import Argument

Array = np.ndarray[Any, Any]


class LoadedModel(Protocol):
    """A model in memory, with the threads of its serving point.

    Thread-safe only where the runtime is.
    """

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]

    @property
    def batch_size(self) -> int | None:
        """Return the only number of samples that `run` takes; None if it takes any."""

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch, for one array per input. Raises what the runtime raises."""


def run_batch(model: LoadedModel, arrays: Sequence[Array]) -> list[Array]:
    """Return the outputs for any number of samples: at once, or in as many runs as a fixed batch size takes."""
    count, size = len(arrays[0]), model.batch_size
    if size is None or count == size:
        return list(model.run(arrays))
    runs = [model.run([_padded(array, start, size) for array in arrays]) for start in range(0, max(count, 1), size)]
    return [np.concatenate(parts)[:count] for parts in zip(*runs)]


def _padded(array: Array, start: int, size: int) -> Array:
    """Return the samples of one run; an incomplete batch is padded by repetition."""
    part = array[start : start + size]
    return part if len(part) == size else np.resize(part, (size, *part.shape[1:]))
