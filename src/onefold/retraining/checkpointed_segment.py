"""Activation checkpointing of consecutive stages.

`torch.utils.checkpoint` does the same, but imports the compiler (70 MB), and counts a recomputed batch twice in the
running statistics of BatchNorm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onefold.retraining.backward_pass import gradient_edge, run_backward
from onefold.retraining.forward_graph import Inputs
from onefold.retraining.rng_state import RngState
from onefold.retraining.stages import Stage

TrackingNorm = nn.modules.batchnorm._NormBase  # BatchNorm and InstanceNorm


class StageSequence:
    """A few consecutive stages as one callable, which continues from the output of the stage before them."""

    def __init__(self, stages: Sequence[Stage], segment: range, inputs: Inputs) -> None:
        """Select the stages of a segment; indices past the last stage stand for the loss and are ignored.

        `inputs` are those of the network, which some stages take too.
        """
        self.stages = [stages[index] for index in segment if index < len(stages)]
        self.inputs = inputs

    def __call__(self, *values: Any) -> Any:
        current: Sequence[Any] = values
        del values
        for stage in self.stages:
            current = [stage.run(self.inputs, *current)]
        return current[0]


def checkpoint(run: StageSequence, *inputs: Tensor) -> Any:
    """Run the stages without saving activations; the backward pass recomputes them."""
    # A segment whose inputs need no gradient must still be part of the autograd graph.
    anchor = torch.empty(0, device=inputs[0].device, requires_grad=True)
    return _CheckpointFunction.apply(run, anchor, *inputs)  # type: ignore[no-untyped-call]


class _CheckpointFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: StageSequence, _: Tensor, *inputs: Tensor) -> Any:
        ctx.run = run
        ctx.rng_state = RngState.capture()
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return run(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        needs_gradient = ctx.needs_input_grad[2:]
        inputs = [tensor.detach().requires_grad_(needs) for tensor, needs in zip(ctx.saved_tensors, needs_gradient)]
        run, ctx.run = ctx.run, None
        modules = [stage.module for stage in run.stages]
        with torch.enable_grad(), _replayed_rng(ctx.rng_state), _frozen_statistics(modules):
            edge = gradient_edge(run(*inputs))  # the output itself need not stay alive
        run_backward(edge, gradient)
        return None, None, *(tensor.grad for tensor in inputs)


@contextmanager
def _replayed_rng(state: RngState) -> Iterator[None]:
    """Draw the random numbers of the first forward again, for dropout."""
    current = RngState.capture()
    state.restore()
    try:
        yield
    finally:
        current.restore()


@contextmanager
def _frozen_statistics(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Keep a recomputed batch from counting twice in the running statistics."""
    norms = [
        child for module in modules for child in module.modules() if isinstance(child, TrackingNorm) and child.training
    ]
    tracked = [norm.track_running_stats for norm in norms]
    statistics = [(norm.running_mean, norm.running_var) for norm in norms]
    for norm in norms:
        norm.running_mean = norm.running_var = None
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm, is_tracked, (mean, variance) in zip(norms, tracked, statistics):
            norm.track_running_stats, norm.running_mean, norm.running_var = is_tracked, mean, variance
