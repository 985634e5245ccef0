"""The state of all random numbers that a network may draw from, to come back to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RngState:
    """The state of the processor's generator, and of the GPU's where one is in use."""

    processor: Tensor
    accelerators: tuple[Tensor, ...]

    @classmethod
    def now(cls) -> RngState:
        """As it is."""
        on_gpus = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(torch.get_rng_state(), tuple(torch.cuda.get_rng_state_all()) if on_gpus else ())

    def put_back(self) -> None:
        """As it was."""
        torch.set_rng_state(self.processor)
        if self.accelerators:
            torch.cuda.set_rng_state_all(self.accelerators)
