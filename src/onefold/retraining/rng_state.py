"""The state of every random number generator that a network may draw from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RngState:
    """The generator state of the CPU, and of all GPUs if CUDA is initialized."""

    cpu: Tensor
    gpus: tuple[Tensor, ...]

    @classmethod
    def capture(cls) -> RngState:
        """Return the current state."""
        uses_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(torch.get_rng_state(), tuple(torch.cuda.get_rng_state_all()) if uses_gpu else ())

    def restore(self) -> None:
        """Set all generators back to this state."""
        torch.set_rng_state(self.cpu)
        if self.gpus:
            torch.cuda.set_rng_state_all(self.gpus)
