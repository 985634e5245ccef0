"""How long each stretch takes, forward and backward: a part that is always there and a part for each sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onefold.retraining.backward_pass import gradient_edge, run_backward
from onefold.retraining.memory_trace import Loss, answered
from onefold.retraining.stages import StagedNetwork, preserved_state

FEW, MORE = 2, 8  # samples


@dataclass(frozen=True)
class Took:
    """Seconds."""

    fixed: float
    per_sample: float

    def of(self, batch_size: int) -> float:
        """For a batch."""
        return self.fixed + self.per_sample * batch_size


@dataclass(frozen=True)
class StageTime:
    """Of one stretch."""

    forward: Took
    backward: Took


def time_step(staged: StagedNetwork, batch: tuple[Tensor, ...], loss: Loss, times: int = 2) -> tuple[StageTime, ...]:
    """Times each stretch by itself, the fastest of a few times; the last one is the loss."""
    found = []
    with preserved_state(staged.network):
        staged.network.train()
        for size in (FEW, MORE):
            best: list[tuple[float, float]] = []
            for _ in range(times + 1):  # the first time is for warming up
                took = _once(staged, [_repeated(part, size) for part in batch], loss)
                best = [(min(a, c), min(b, d)) for (a, b), (c, d) in zip(best, took)] if best else took
            found.append(best)
    return tuple(StageTime(_line(few[0], more[0]), _line(few[1], more[1])) for few, more in zip(*found))


def _repeated(part: Tensor, size: int) -> Tensor:
    return part[torch.arange(size, device=part.device) % len(part)]


def _line(few: float, more: float) -> Took:
    slope = max((more - few) / (MORE - FEW), more / MORE / 2)
    return Took(max(0.0, more - slope * MORE), slope)


def _once(staged: StagedNetwork, batch: list[Tensor], loss: Loss) -> list[tuple[float, float]]:
    *values, targets = batch
    took = []
    for stage in staged.stages:
        forward, backward, output = _part(stage, values, stage.weights)
        if not isinstance(output, Tensor):
            took.append(_part(partial(answered, stage.run, loss, targets), values, stage.weights)[:2])
            return took
        took.append((forward, backward))
        values = [output]
    took.append(_part(lambda outputs: loss(outputs, targets), values, [])[:2])
    return took


def _part(run: Callable[..., Any], given: list[Tensor], weights: list[nn.Parameter]) -> tuple[float, float, Any]:
    entering = [one.detach().requires_grad_(one.is_floating_point()).clone() for one in given]
    kept = [(weight, weight.grad, weight.requires_grad) for weight in weights]
    try:
        for weight in weights:
            weight.requires_grad_(True).grad = None
        began = _now(given[0])
        output = run(*entering)
        between = _now(given[0])
        if isinstance(output, Tensor) and output.requires_grad:
            run_backward(gradient_edge(output), torch.ones_like(output))
        return between - began, _now(given[0]) - between, output.detach() if isinstance(output, Tensor) else output
    finally:
        for weight, gradient, wanted in kept:
            weight.grad = gradient
            weight.requires_grad_(wanted)


def _now(value: Tensor) -> float:
    if value.device.type == "cuda":
        torch.cuda.synchronize(value.device)
    return time.perf_counter()
