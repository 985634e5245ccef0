"""Knobs of the program: how the optimiser updates weights, and whether the network is compiled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from onefold.training.knobs.knob import Job, NotHere
from onefold.vocabulary.records import Value

FLAGS = {"loop": (False, False), "foreach": (True, False), "fused": (False, True)}  # foreach, fused
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


class Update:
    """How the optimiser goes over the weights: one by one, operation by operation, or all in one program."""

    name, reduces, risky, start_s = "update", False, False, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        groups = job.optimizer.param_groups
        if not all("foreach" in group for group in groups):
            raise NotHere(f"{type(job.optimizer).__name__} has one way only")
        found = self._found(job)
        ways = {found: None, "loop": None}
        if job.device.type != "cpu":  # a processor wins nothing by it
            ways["foreach"] = None
        if isinstance(job.optimizer, FUSED) and all("fused" in group for group in groups):
            ways["fused"] = None
        if len(ways) == 1:
            raise NotHere(f"{type(job.optimizer).__name__} has one way only on a processor")
        return tuple(ways)

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        found = self._found(job)
        if value == found:
            yield
            return
        before = [(group.get("foreach"), group.get("fused")) for group in job.optimizer.param_groups]
        for group in job.optimizer.param_groups:
            group["foreach"], group["fused"] = FLAGS[str(value)]
        self._place_counters(job, str(value))
        try:
            yield
        finally:
            for group, (foreach, fused) in zip(job.optimizer.param_groups, before):
                group["foreach"], group["fused"] = foreach, fused
            self._place_counters(job, found)

    def _place_counters(self, job: Job, way: str) -> None:
        """Steps are counted on the processor, but for the one program, which counts where the weights are."""
        where = job.device if way == "fused" else torch.device("cpu")
        for state in job.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(where)

    def _found(self, job: Job) -> str:
        group = job.optimizer.param_groups[0]
        if group.get("fused"):
            return "fused"
        together = group["foreach"]
        return "foreach" if together or (together is None and job.device.type == "cuda") else "loop"


class Compiling:
    """Whether torch compiles the network, on a GPU also with CUDA graphs."""

    name, reduces, risky, start_s = "compile", False, True, 60.0

    def options(self, job: Job) -> Sequence[Value]:
        if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
            raise NotHere("there is no C++ compiler")
        return ("eager", "compiled", "graphs") if job.device.type == "cuda" else ("eager", "compiled")

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        if value == "eager":
            yield
            return
        before = job.model._compiled_call_impl
        job.model.compile(mode="reduce-overhead" if value == "graphs" else None)
        try:
            yield
        finally:
            job.model._compiled_call_impl = before
