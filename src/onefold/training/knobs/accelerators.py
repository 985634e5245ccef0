"""The knob of accelerators: the number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from onefold.training.knobs.knob import KnobUnavailable, TrainingContext
from onefold.vocabulary.records import Value


class GpuCount:
    """The number of GPUs over which each batch is distributed (data parallelism)."""

    name, reduces_precision, may_fail, setup_s = "gpus", False, True, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if context.device.type != "cuda":
            raise KnobUnavailable("training does not run on GPUs")
        count = torch.cuda.device_count()
        if count < 2:
            raise KnobUnavailable("this machine has one GPU")
        if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in context.model.modules()):
            raise KnobUnavailable("the network has batch norms, whose statistics need the whole batch")
        powers = [2**i for i in range(count.bit_length()) if 2**i < count]
        return tuple(dict.fromkeys([1, *powers, count]))

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        if value == 1:
            yield
            return
        first = context.device.index or 0
        others = [number for number in range(torch.cuda.device_count()) if number != first]
        with data_parallel(context.model, [first, *others][: int(value or 1)]):
            yield


@contextmanager
def data_parallel(model: torch.nn.Module, gpus: Sequence[int]) -> Iterator[None]:
    """Distribute every batch that the model receives over these GPUs for the block."""

    def forward(*inputs: Any, **named: Any) -> Any:
        del model.forward  # the replicas must call the forward of the class
        try:
            return torch.nn.parallel.data_parallel(model, inputs, list(gpus), module_kwargs=named or None)
        finally:
            model.forward = forward

    model.forward = forward
    try:
        yield
    finally:
        del model.forward
