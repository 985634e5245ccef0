"""The seam of knobs, and the training that they act on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map

from onefold.training.splits import LoaderSettings
from onefold.vocabulary.knobs import OptimizeKnobsFor
from onefold.vocabulary.records import Value


class KnobUnavailable(Exception):
    """A knob has no effect or no alternative here; the message says why."""


@dataclass
class TrainingContext:
    """What knobs act on: the model, optimizer, device and data loader of a training."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device
    cores: tuple[int, ...]  # CPU cores that the process may use
    loader: LoaderSettings | None = None  # None for arrays in memory
    optimize_for: OptimizeKnobsFor = "time"
    quietest_cores: tuple[int, ...] = ()  # those with the least load of other processes first; empty if unknown
    adapters: list[Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=list)  # of the tensors of a batch

    def adapt(self, batch: Any) -> Any:
        """Return a batch, also a nested one, with every adapter applied to its tensors."""
        return tree_map(self._adapted, batch) if self.adapters else batch

    def _adapted(self, part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            for adapter in self.adapters:
                part = adapter(part)
        return part


class Knob(Protocol):
    """A system parameter that can change between two training steps."""

    name: str
    reduces_precision: bool  # whether the result can change by more than the order of floating-point additions
    may_fail: bool  # whether some networks do not run with it
    setup_s: float  # how long a change takes, roughly; 0 for most

    def options(self, context: TrainingContext) -> Sequence[Value]:
        """Return the values that it can have here, the current one first.

        Raises KnobUnavailable if there is no choice.
        """

    def applied(self, value: Value, context: TrainingContext) -> AbstractContextManager[None]:
        """Set the knob for the block, and restore the previous value afterwards, also after an exception."""
