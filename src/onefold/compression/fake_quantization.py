"""Fake quantization for quantization-aware training (QAT): forward passes round to int8, gradients pass through.

with fake_quantization(network):
    ...                             # train
...                                 # the network is unwrapped again; its weights now lose less when quantized
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils import parametrize

LAYERS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d)
MAX_WEIGHT = 127  # signed 8-bit, symmetric
MAX_INPUT = 255  # unsigned 8-bit, with a zero point
RANGE_MOMENTUM = 0.95  # of the moving average over the observed input range
MIN_SCALE = 1e-12


def quantized_weight(weight: torch.Tensor) -> torch.Tensor:
    """Return the integers that represent a weight, with one scale per output channel."""
    return (weight.detach() / _scale(weight)).round().clamp(-MAX_WEIGHT, MAX_WEIGHT)


def _scale(weight: torch.Tensor) -> torch.Tensor:
    largest = weight.detach().abs().amax(dim=tuple(range(1, weight.ndim)), keepdim=True)
    return (largest / MAX_WEIGHT).clamp_min(MIN_SCALE)


class _FakeQuantizedWeight(torch.nn.Module):
    """Parametrization with a straight-through estimator."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (quantized_weight(weight) * _scale(weight) - weight).detach()


class _FakeQuantizedInput:
    """Forward pre-hook that quantizes a layer's input over a moving average of its range."""

    def __init__(self) -> None:
        self._low: torch.Tensor | None = None
        self._high: torch.Tensor | None = None

    def __call__(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        values = inputs[0]
        if module.training or self._low is None or self._high is None:
            low, high = values.detach().amin().clamp_max(0), values.detach().amax().clamp_min(0)
            self._low = low if self._low is None else RANGE_MOMENTUM * self._low + (1 - RANGE_MOMENTUM) * low
            self._high = high if self._high is None else RANGE_MOMENTUM * self._high + (1 - RANGE_MOMENTUM) * high
        scale = ((self._high - self._low) / MAX_INPUT).clamp_min(MIN_SCALE)
        zero_point = (-self._low / scale).round()
        integers = ((values / scale).round() + zero_point).clamp(0, MAX_INPUT)
        return (values + ((integers - zero_point) * scale - values).detach(), *inputs[1:])


@contextmanager
def fake_quantization(network: torch.nn.Module) -> Iterator[None]:
    """Quantize weights and inputs of Linear and convolution layers in forward passes inside the context."""
    layers = [module for module in network.modules() if isinstance(module, LAYERS)]
    parameter_names = [list(layer._parameters) for layer in layers]
    hooks = []
    try:
        for layer in layers:
            parametrize.register_parametrization(layer, "weight", _FakeQuantizedWeight())
            hooks.append(layer.register_forward_pre_hook(_FakeQuantizedInput()))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, names in zip(layers, parameter_names):
            if parametrize.is_parametrized(layer, "weight"):
                # Keep the full-precision weights: the ONNX quantizer rounds them later.
                parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
            for name in names:  # optimizers and masks rely on the order of parameters
                layer._parameters[name] = layer._parameters.pop(name)
