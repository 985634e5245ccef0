"""Knobs of execution: the implementation of the optimizer's update, and torch.compile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from onefold.training.knobs.knob import KnobUnavailable, TrainingContext
from onefold.vocabulary.records import Value

FLAGS = {"loop": (False, False), "foreach": (True, False), "fused": (False, True)}  # (foreach, fused)
FUSED_OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


class OptimizerUpdate:
    """The implementation of the optimizer's update: a loop over the weights, `foreach`, or a fused kernel."""

    name, reduces_precision, may_fail, setup_s = "update", False, False, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        groups = context.optimizer.param_groups
        if not all("foreach" in group for group in groups):
            raise KnobUnavailable(f"{type(context.optimizer).__name__} has one implementation")
        options = {self._current(context): None, "loop": None}
        if context.device.type != "cpu":  # foreach is no faster on a CPU
            options["foreach"] = None
        if isinstance(context.optimizer, FUSED_OPTIMIZERS) and all("fused" in group for group in groups):
            options["fused"] = None
        if len(options) == 1:
            raise KnobUnavailable(f"{type(context.optimizer).__name__} has one implementation on a CPU")
        return tuple(options)

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        current = self._current(context)
        if value == current:
            yield
            return
        before = [(group.get("foreach"), group.get("fused")) for group in context.optimizer.param_groups]
        for group in context.optimizer.param_groups:
            group["foreach"], group["fused"] = FLAGS[str(value)]
        self._move_step_counters(context, str(value))
        try:
            yield
        finally:
            for group, (foreach, fused) in zip(context.optimizer.param_groups, before):
                group["foreach"], group["fused"] = foreach, fused
            self._move_step_counters(context, current)

    def _move_step_counters(self, context: TrainingContext, implementation: str) -> None:
        """Move the step counters to where they are expected: beside the weights if fused, else on the CPU."""
        device = context.device if implementation == "fused" else torch.device("cpu")
        for state in context.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(device)

    def _current(self, context: TrainingContext) -> str:
        group = context.optimizer.param_groups[0]
        if group.get("fused"):
            return "fused"
        foreach = group["foreach"]
        return "foreach" if foreach or (foreach is None and context.device.type == "cuda") else "loop"


class CompileMode:
    """Whether torch.compile compiles the network; `graphs` also records CUDA graphs."""

    name, reduces_precision, may_fail, setup_s = "compile", False, True, 60.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
            raise KnobUnavailable("torch.compile needs a C++ compiler")
        return ("eager", "compiled", "graphs") if context.device.type == "cuda" else ("eager", "compiled")

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        if value == "eager":
            yield
            return
        before = context.model._compiled_call_impl
        context.model.compile(mode="reduce-overhead" if value == "graphs" else None)
        try:
            yield
        finally:
            context.model._compiled_call_impl = before
