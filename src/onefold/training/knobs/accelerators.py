"""The knob of accelerators: over how many GPUs a batch is spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from onefold.training.knobs.knob import Job, NotHere
from onefold.vocabulary.records import Value


class Gpus:
    """Over how many GPUs each batch is spread; gradients come together on the first."""

    name, reduces, risky, start_s = "gpus", False, True, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if job.device.type != "cuda":
            raise NotHere("the work is not done by GPUs")
        count = torch.cuda.device_count()
        if count < 2:
            raise NotHere("there is one GPU")
        if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in job.model.modules()):
            raise NotHere("the network has norms over a whole batch, which must not be parted")
        powers = [2**i for i in range(count.bit_length()) if 2**i < count]
        return tuple(dict.fromkeys([1, *powers, count]))

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        if value == 1:
            yield
            return
        first = job.device.index or 0
        others = [number for number in range(torch.cuda.device_count()) if number != first]
        with spread(job.model, [first, *others][: int(value or 1)]):
            yield


@contextmanager
def spread(model: torch.nn.Module, gpus: Sequence[int]) -> Iterator[None]:
    """Has these GPUs share every batch that the model is given, for the block."""

    def forward(*inputs: Any, **named: Any) -> Any:
        del model.forward  # the copies on the other GPUs are to do the work themselves
        try:
            return torch.nn.parallel.data_parallel(model, inputs, list(gpus), module_kwargs=named or None)
        finally:
            model.forward = forward

    model.forward = forward
    try:
        yield
    finally:
        del model.forward
