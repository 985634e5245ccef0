"""Observe how a training loop calls its network, and repeat the call with other knobs.

call = ForwardCall(context.model)
with call.recorded(): ...                       # one training step
runs(call, context, knob, value)                # whether the network runs with a value of a knob
output_error(call, context, knob, value)        # how much the value changes what the network computes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.utils._pytree import tree_leaves

from onefold.training.knobs.knob import Knob, TrainingContext
from onefold.vocabulary.records import Value


class ForwardCall:
    """The inputs of the latest observed forward pass of a network."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    @property
    def is_known(self) -> bool:
        """Return whether a forward pass was observed."""
        return self._inputs is not None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the inputs of a forward pass in the block."""

        def record(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._inputs = args, kwargs

        with self._model.register_forward_pre_hook(record, with_kwargs=True):
            yield

    def outputs(self, context: TrainingContext) -> list[torch.Tensor]:
        """Repeat the forward pass and return its floating-point outputs; no state of the network changes."""
        if self._inputs is None:
            raise RuntimeError("no forward pass was observed")
        args, kwargs = self._inputs
        modes = [(module, module.training) for module in self._model.modules()]  # some layers may be frozen
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]  # running statistics
        cuda_devices = [context.device] if context.device.type == "cuda" else []
        try:
            for module, is_training in modes:  # no dropout, but the statistics that training uses
                module.training = is_training and isinstance(module, BatchNorm)
            with torch.random.fork_rng(cuda_devices), torch.no_grad():
                leaves = tree_leaves(self._model(*context.adapt(args), **context.adapt(kwargs)))
        finally:
            for module, is_training in modes:
                module.training = is_training
            for buffer, before in buffers:
                with suppress(RuntimeError):  # a buffer that changed its shape
                    buffer.copy_(before)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def runs(call: ForwardCall, context: TrainingContext, knob: Knob, value: Value) -> bool:
    """Return whether a forward pass succeeds with this value of a knob; True without a test if it cannot fail."""
    if not knob.may_fail:
        return True
    try:
        with knob.applied(value, context):
            call.outputs(context)
    except Exception:  # noqa: BLE001 - a network may raise anything
        return False
    return True


def output_error(call: ForwardCall, context: TrainingContext, knob: Knob, value: Value) -> float:
    """Return how much a value of a knob changes the outputs of the network, relative to how much samples differ.

    Losses of two precisions differ by the noise of their batches, and early in training they hardly differ at all. Here
    the weights and the batch are the same, so that a small difference means something.
    """
    exact = call.outputs(context)
    with knob.applied(value, context):
        reduced = call.outputs(context)
    errors = [_relative_error(*pair) for pair in zip(reduced, exact)]
    return max(errors, default=0.0)


def _relative_error(reduced: torch.Tensor, exact: torch.Tensor) -> float:
    reduced, exact = reduced.float(), exact.float()
    mean = exact.mean(dim=0) if exact.ndim and len(exact) > 1 else exact.mean()
    variation = (exact - mean).square().mean().sqrt()
    error = (reduced - exact).square().mean().sqrt()
    return float(error / variation) if variation > 0 else float(error > 0)
