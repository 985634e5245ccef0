"""Knobs of memory: in which order a picture's numbers lie, and what happens to memory that is given back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from onefold.records import Value
from onefold.training.knobs.knob import Job, NotHere

FORMATS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
DIMENSIONS = 4  # of what has channels


class MemoryFormat:
    """Whether the channels of a picture lie apart or side by side, pixel by pixel."""

    name, reduces, risky, start_s = "memory_format", False, True, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if not any(isinstance(module, torch.nn.Conv2d) for module in job.model.modules()):
            raise NotHere("the network has no two-dimensional convolutions")
        found = self._found(job)
        return found, *(name for name in FORMATS if name != found)

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        def adapter(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.contiguous(memory_format=wanted) if tensor.ndim == DIMENSIONS else tensor

        if value == self._found(job):
            yield
            return
        wanted = FORMATS[str(value)]
        found = [(parameter, _format(parameter)) for parameter in job.model.parameters() if _has_channels(parameter)]
        job.adapters.append(adapter)
        try:
            for parameter, _ in found:
                # Cloned: a tensor with one channel passes for lying either way, and would be left as it is.
                parameter.data = parameter.data.clone(memory_format=wanted)
            _convert_state(job, wanted)
            yield
        finally:
            job.adapters.remove(adapter)
            for parameter, form in found:
                parameter.data = parameter.data.clone(memory_format=form)
            _convert_state(job, FORMATS[self._found(job)])

    def _found(self, job: Job) -> str:
        weights = [module.weight for module in job.model.modules() if isinstance(module, torch.nn.Conv2d)]
        return "channels last" if any(_format(weight) is torch.channels_last for weight in weights) else "contiguous"


def _has_channels(tensor: torch.Tensor) -> bool:
    return tensor.ndim == DIMENSIONS


def _format(tensor: torch.Tensor) -> Any:
    """How a tensor's numbers lie; what lies in both ways at once is called contiguous."""
    last = tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def _convert_state(job: Job, wanted: Any) -> None:
    """What the optimiser keeps of each weight lies as the weights do."""
    for state in job.optimizer.state.values():
        for name, part in state.items():
            if isinstance(part, torch.Tensor) and _has_channels(part):
                state[name] = part.contiguous(memory_format=wanted)


class Allocator:
    """Whether memory that is given back goes to the system at once, or is kept for the next step.

    The C library hands large pieces back to the system and gets them anew, page by page, in every step. The workers of
    a study are started so that they keep it; this knob is for trainings in other processes.
    """

    name, reduces, risky, start_s = "allocator", False, False, 0.0
    # Of mallopt: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD and M_MMAP_MAX. They cannot be asked for, and once they
    # are set the C library no longer adapts them, so what is put back is the farthest it would have gone by itself.
    _NUMBERS = (-1, -2, -3, -4)
    _VALUES: ClassVar = {
        "system": (64 * 2**20, 128 * 2**10, 32 * 2**20, 65_536),
        "keep": (2**31 - 1, 64 * 2**20, 32 * 2**20, 0),
    }

    def options(self, job: Job) -> Sequence[Value]:
        if job.device.type != "cpu":
            raise NotHere("the work is done by the accelerator")
        if "MALLOC_TRIM_THRESHOLD_" in os.environ:
            raise NotHere("this process was started so that it keeps memory for the next step")
        if not hasattr(ctypes.CDLL(None), "mallopt"):
            raise NotHere("the C library has no mallopt")
        return tuple(self._VALUES)

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:  # noqa: ARG002 - of the whole process
        if value == "system":
            yield
            return
        self._apply(str(value))
        try:
            yield
        finally:
            self._apply("system")

    def _apply(self, value: str) -> None:
        library = ctypes.CDLL(None)
        for number, amount in zip(self._NUMBERS, self._VALUES[value]):
            library.mallopt(number, amount)
