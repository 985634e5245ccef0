"""The targets of data without labels: as long as the inputs, and nothing is known of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1  # no class has this number


class MissingTargets:
    """An array of UNKNOWN that takes no memory."""

    dtype = np.dtype(np.int64)

    def __init__(self, count: int) -> None:
        self.shape = (count,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.int64]:
        return np.full(len(np.arange(len(self))[rows]), UNKNOWN)
