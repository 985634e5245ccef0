"""Knobs of memory: the memory format of tensors, and whether the allocator keeps freed memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch

from onefold.training.knobs.knob import KnobUnavailable, TrainingContext
from onefold.vocabulary.records import Value

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels last"
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d)
IMAGE_DIMENSIONS = 4  # samples, channels, height, width


class MemoryFormat:
    """Memory format: contiguous (NCHW) or channels-last (NHWC; NWC for 1-D convolutions)."""

    name, reduces_precision, may_fail, setup_s = "memory_format", False, True, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if not any(isinstance(module, CONVOLUTIONS) for module in context.model.modules()):
            raise KnobUnavailable("the network has no 1-D or 2-D convolutions")
        current = self._current(context)
        return current, CHANNELS_LAST if current == CONTIGUOUS else CONTIGUOUS

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        def adapter(tensor: torch.Tensor) -> torch.Tensor:
            return _converted(tensor, str(value)) if tensor.ndim == IMAGE_DIMENSIONS else tensor

        before = self._current(context)
        if value == before:
            yield
            return
        formats = [(weight, _format(weight)) for weight in _weights(context)]
        context.adapters.append(adapter)
        try:
            for weight, _ in formats:
                weight.data = _converted(weight.data, str(value))
                _convert_state(context, weight, str(value))
            yield
        finally:
            context.adapters.remove(adapter)
            for weight, previous in formats:
                weight.data = _converted(weight.data, previous)
                _convert_state(context, weight, before)

    def _current(self, context: TrainingContext) -> str:
        is_last = any(_format(weight) == CHANNELS_LAST for weight in _weights(context))
        return CHANNELS_LAST if is_last else CONTIGUOUS


def _weights(context: TrainingContext) -> list[torch.nn.Parameter]:
    """Return the weights with a channel dimension: 4-D ones, and those of 1-D convolutions."""
    of_sequences = {id(module.weight) for module in context.model.modules() if isinstance(module, torch.nn.Conv1d)}
    return [p for p in context.model.parameters() if p.ndim == IMAGE_DIMENSIONS or id(p) in of_sequences]


def _format(tensor: torch.Tensor) -> str:
    """Return the memory format of a tensor; one that satisfies both is called contiguous."""
    is_last = _as_image(tensor).is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
    return CHANNELS_LAST if is_last else CONTIGUOUS


def _converted(tensor: torch.Tensor, memory_format: str) -> torch.Tensor:
    """Return a copy in a memory format.

    `clone`, since `contiguous` returns a tensor with one channel unchanged: it satisfies both formats.
    """
    if memory_format == CONTIGUOUS:
        return tensor.clone(memory_format=torch.contiguous_format)
    converted = _as_image(tensor).clone(memory_format=torch.channels_last)
    return converted if tensor.ndim == IMAGE_DIMENSIONS else converted.squeeze(2)


def _as_image(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sequence as an image of height 1, which is how torch convolves it."""
    return tensor if tensor.ndim == IMAGE_DIMENSIONS else tensor.unsqueeze(2)


def _convert_state(context: TrainingContext, weight: torch.nn.Parameter, memory_format: str) -> None:
    """Convert the optimizer state of a weight to the memory format of the weight."""
    state = context.optimizer.state.get(weight, {})
    for name, part in state.items():
        if isinstance(part, torch.Tensor) and part.shape == weight.shape:
            state[name] = _converted(part, memory_format)


class Allocator:
    """Whether malloc keeps freed memory for the next step (`keep`) or returns it to the system (`system`).

    By default glibc returns large blocks to the system and gets them back page by page in every step. The workers of a
    study are started with `keep`, so this knob is for training in other processes.
    """

    name, reduces_precision, may_fail, setup_s = "allocator", False, False, 0.0
    # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD and M_MMAP_MAX of mallopt. They cannot be read, and glibc stops
    # adapting them once they are set, so the values restored are the largest that it would have adapted them to.
    _PARAMETERS = (-1, -2, -3, -4)
    _VALUES: ClassVar = {
        "system": (64 * 2**20, 128 * 2**10, 32 * 2**20, 65_536),
        "keep": (2**31 - 1, 64 * 2**20, 32 * 2**20, 0),
    }

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if context.device.type != "cpu":
            raise KnobUnavailable("training runs on an accelerator")
        if "MALLOC_TRIM_THRESHOLD_" in os.environ:
            raise KnobUnavailable("this process was started with an allocator that keeps freed memory")
        if not hasattr(ctypes.CDLL(None), "mallopt"):
            raise KnobUnavailable("the C library has no mallopt")
        return tuple(self._VALUES)

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:  # noqa: ARG002 - a process setting
        if value == "system":
            yield
            return
        self._set(str(value))
        try:
            yield
        finally:
            self._set("system")

    def _set(self, value: str) -> None:
        library = ctypes.CDLL(None)
        for parameter, amount in zip(self._PARAMETERS, self._VALUES[value]):
            library.mallopt(parameter, amount)
