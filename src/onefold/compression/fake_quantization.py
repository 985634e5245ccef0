"""Training that feels what integers will do to it: numbers are rounded on the way forward, gradients pass as if not.

with fake_quantization(network):
    ...                             # train
...                                 # the network is as it was, with weights that suffer less from being rounded
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils import parametrize

LAYERS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)
WEIGHTS_UP_TO = 127  # of signed integers
INPUTS_UP_TO = 255  # of unsigned ones
MEMORY = 0.95  # of the range that inputs had so far


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """The whole numbers that weights become, with a scale for each output channel."""
    return (weight.detach() / _scale(weight)).round().clamp(-WEIGHTS_UP_TO, WEIGHTS_UP_TO)


def _scale(weight: torch.Tensor) -> torch.Tensor:
    largest = weight.detach().abs().amax(dim=tuple(range(1, weight.ndim)), keepdim=True)
    return (largest / WEIGHTS_UP_TO).clamp_min(1e-12)


class _RoundedWeight(torch.nn.Module):
    """Weights as they are once they have been rounded."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (rounded(weight) * _scale(weight) - weight).detach()


class _RoundedInput:
    """What a layer reads as integers of 8 bits, in the range that was seen lately."""

    def __init__(self) -> None:
        self._low: torch.Tensor | None = None
        self._high: torch.Tensor | None = None

    def __call__(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        values = inputs[0]
        if module.training or self._low is None or self._high is None:
            low, high = values.detach().amin().clamp_max(0), values.detach().amax().clamp_min(0)
            self._low = low if self._low is None else MEMORY * self._low + (1 - MEMORY) * low
            self._high = high if self._high is None else MEMORY * self._high + (1 - MEMORY) * high
        scale = ((self._high - self._low) / INPUTS_UP_TO).clamp_min(1e-12)
        zero = (-self._low / scale).round()
        whole = ((values / scale).round() + zero).clamp(0, INPUTS_UP_TO)
        return (values + ((whole - zero) * scale - values).detach(), *inputs[1:])


@contextmanager
def fake_quantization(network: torch.nn.Module) -> Iterator[None]:
    """Rounds the weights and the inputs of dense and convolutional layers for the block."""
    layers = [module for module in network.modules() if isinstance(module, LAYERS)]
    orders = [list(layer._parameters) for layer in layers]
    hooks = []
    try:
        for layer in layers:
            parametrize.register_parametrization(layer, "weight", _RoundedWeight())
            hooks.append(layer.register_forward_pre_hook(_RoundedInput()))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, order in zip(layers, orders):
            if parametrize.is_parametrized(layer, "weight"):
                # The weights themselves stay: it is the quantiser that rounds them.
                parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
            for name in order:  # where others count on them
                layer._parameters[name] = layer._parameters.pop(name)
