"""Forward and backward time of each stage, as a fixed part and a part per sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onefold.retraining.backward_pass import gradient_edge, run_backward
from onefold.retraining.batch_cost import BatchCost
from onefold.retraining.memory_trace import LossFunction, stage_with_loss
from onefold.retraining.stages import StagedNetwork, preserved_state
from onefold.retraining.time_window import Clock

SMALL_BATCH, LARGE_BATCH = 2, 8  # samples


@dataclass(frozen=True)
class StageTime:
    """Seconds that one stage takes."""

    forward: BatchCost
    backward: BatchCost


def time_stages(
    staged: StagedNetwork,
    batch: tuple[Tensor, ...],
    loss: LossFunction,
    repeats: int = 2,
    clock: Clock = time.perf_counter,
) -> tuple[StageTime, ...]:
    """Time each stage by itself, the fastest of `repeats` after a warm-up. The last entry is the loss."""
    fastest = []
    with preserved_state(staged.network):
        staged.network.train()
        for size in (SMALL_BATCH, LARGE_BATCH):
            best: list[tuple[float, float]] = []
            for _ in range(repeats + 1):
                times = _time_once(staged, [_resized(part, size) for part in batch], loss, clock)
                best = [(min(a, c), min(b, d)) for (a, b), (c, d) in zip(best, times)] if best else times
            fastest.append(best)
    return tuple(StageTime(_fit(few[0], many[0]), _fit(few[1], many[1])) for few, many in zip(*fastest))


def _resized(part: Tensor, size: int) -> Tensor:
    """Repeat samples up to this size."""
    return part[torch.arange(size, device=part.device) % len(part)]


def _fit(small_s: float, large_s: float) -> BatchCost:
    """Fit a line through two times; at least half of the larger one is attributed to its samples."""
    slope = max((large_s - small_s) / (LARGE_BATCH - SMALL_BATCH), large_s / LARGE_BATCH / 2)
    return BatchCost(max(0.0, large_s - slope * LARGE_BATCH), slope)


def _time_once(
    staged: StagedNetwork, batch: list[Tensor], loss: LossFunction, clock: Clock
) -> list[tuple[float, float]]:
    *inputs, targets = batch
    values = inputs
    times: list[tuple[float, float]] = []
    for stage in staged.stages:
        run = partial(stage.run, inputs)
        forward_s, backward_s, output = _time_stage(run, values, stage.weights, clock)
        if not isinstance(output, Tensor):
            run = partial(stage_with_loss, run, loss, targets)
            return [*times, _time_stage(run, values, stage.weights, clock)[:2]]
        times.append((forward_s, backward_s))
        values = [output]
    times.append(_time_stage(lambda outputs: loss(outputs, targets), values, [], clock)[:2])
    return times


def _time_stage(
    run: Callable[..., Any], inputs: list[Tensor], weights: list[nn.Parameter], clock: Clock
) -> tuple[float, float, Any]:
    values = [tensor.detach().requires_grad_(tensor.is_floating_point()).clone() for tensor in inputs]
    states = [(weight, weight.grad, weight.requires_grad) for weight in weights]
    try:
        for weight in weights:
            weight.requires_grad_(True).grad = None
        started = _now(clock, inputs[0])
        output = run(*values)
        turned = _now(clock, inputs[0])
        if isinstance(output, Tensor) and output.requires_grad:
            run_backward(gradient_edge(output), torch.ones_like(output))
        ended = _now(clock, inputs[0])
        return turned - started, ended - turned, output.detach() if isinstance(output, Tensor) else output
    finally:
        for weight, gradient, requires_grad in states:
            weight.grad = gradient
            weight.requires_grad_(requires_grad)


def _now(clock: Clock, value: Tensor) -> float:
    """Return the time once the GPU, if there is one, has finished its work."""
    if value.device.type == "cuda":
        torch.cuda.synchronize(value.device)
    return clock()
