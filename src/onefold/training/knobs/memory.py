"""Knobs of memory: in which order a picture's numbers lie, and what happens to memory that is given back."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch

from onefold.training.knobs.knob import Job, NotHere
from onefold.vocabulary.records import Value

CONTIGUOUS, LAST = "contiguous", "channels last"
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d)
PICTURE = 4  # dimensions: samples, channels, height, width


class MemoryFormat:
    """Whether the channels of a picture or a sequence lie apart, or side by side for each pixel or moment."""

    name, reduces, risky, start_s = "memory_format", False, True, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if not any(isinstance(module, CONVOLUTIONS) for module in job.model.modules()):
            raise NotHere("the network has no convolutions over one or two dimensions")
        found = self._found(job)
        return found, LAST if found == CONTIGUOUS else CONTIGUOUS

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        def adapter(tensor: torch.Tensor) -> torch.Tensor:
            return _laid(tensor, str(value)) if tensor.ndim == PICTURE else tensor

        before = self._found(job)
        if value == before:
            yield
            return
        found = [(weight, _format(weight)) for weight in _weights(job)]
        job.adapters.append(adapter)
        try:
            for weight, _ in found:
                weight.data = _laid(weight.data, str(value))
                _lay_state(job, weight, str(value))
            yield
        finally:
            job.adapters.remove(adapter)
            for weight, form in found:
                weight.data = _laid(weight.data, form)
                _lay_state(job, weight, before)

    def _found(self, job: Job) -> str:
        return LAST if any(_format(weight) == LAST for weight in _weights(job)) else CONTIGUOUS


def _weights(job: Job) -> list[torch.nn.Parameter]:
    """The weights that have channels: of four dimensions, and those of convolutions over sequences."""
    sequences = {id(module.weight) for module in job.model.modules() if isinstance(module, torch.nn.Conv1d)}
    return [weight for weight in job.model.parameters() if weight.ndim == PICTURE or id(weight) in sequences]


def _format(tensor: torch.Tensor) -> str:
    """How a tensor's numbers lie; what lies in both ways at once is called contiguous."""
    last = _picture(tensor).is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return LAST if last else CONTIGUOUS


def _laid(tensor: torch.Tensor, form: str) -> torch.Tensor:
    """The same numbers, lying so.

    Cloned: a tensor with one channel passes for lying either way, and would be left as it is.
    """
    if form == CONTIGUOUS:
        return tensor.clone(memory_format=torch.contiguous_format)
    laid = _picture(tensor).clone(memory_format=torch.channels_last)
    return laid if tensor.ndim == PICTURE else laid.squeeze(2)


def _picture(tensor: torch.Tensor) -> torch.Tensor:
    """A sequence as a picture that is one pixel high, which is how torch convolves it."""
    return tensor if tensor.ndim == PICTURE else tensor.unsqueeze(2)


def _lay_state(job: Job, weight: torch.nn.Parameter, form: str) -> None:
    """What the optimiser keeps of a weight lies as the weight does."""
    state = job.optimizer.state.get(weight, {})
    for name, part in state.items():
        if isinstance(part, torch.Tensor) and part.shape == weight.shape:
            state[name] = _laid(part, form)


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
