"""The seam of knobs, and what they act on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from onefold.training.splits import Loading
from onefold.vocabulary.records import Value


class NotHere(Exception):
    """Why a knob cannot be turned here, in words."""


@dataclass
class Job:
    """A training under way, for knobs to act on."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    cores: tuple[int, ...]  # that it may use
    loading: Loading | None = None  # how its data are read, where they are not in memory
    adapters: list[Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=list)

    def adapted(self, batch: Any) -> Any:
        """A batch as the knobs want its tensors."""
        if not self.adapters or not isinstance(batch, (tuple, list)):
            return batch
        return type(batch)(self._adapted(part) if isinstance(part, torch.Tensor) else part for part in batch)

    def _adapted(self, tensor: torch.Tensor) -> torch.Tensor:
        for adapter in self.adapters:
            tensor = adapter(tensor)
        return tensor


class Knob(Protocol):
    """Something that can be turned between two steps."""

    name: str
    reduces: bool  # whether what is learned can change by more than the order in which numbers are added up
    risky: bool  # whether a network may turn out not to run with it
    start_s: float  # what turning it takes, about: 0 for nearly all

    def options(self, job: Job) -> Sequence[Value]:
        """What it can be turned to here, what was found first; raises NotHere when there is no choice."""

    def turned(self, value: Value, job: Job) -> AbstractContextManager[None]:
        """Turns it for the block, and puts back what was found, also when the block raises."""
