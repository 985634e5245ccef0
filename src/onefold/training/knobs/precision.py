"""Knobs of numeric precision. They can change what is learned and are unavailable unless allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from onefold.training.knobs.knob import KnobUnavailable, TrainingContext
from onefold.vocabulary.records import Value

BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # of CPUs with bfloat16 arithmetic: x86, x86, Arm


class MixedPrecision:
    """The data type of matrix products and convolutions; weights stay in float32 (torch.autocast)."""

    name, reduces_precision, may_fail, setup_s = "precision", True, True, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if context.device.type == "cuda":
            if not torch.cuda.is_bf16_supported():
                raise KnobUnavailable("the GPU has no bfloat16 arithmetic")
        elif not any(flag in _cpu_flags() for flag in BFLOAT16_FLAGS):
            raise KnobUnavailable("the CPU has no bfloat16 arithmetic")
        return "float32", "bfloat16"

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:
        if value == "float32":
            yield
            return
        # Without the cache, since the weights change within the block.
        with torch.autocast(context.device.type, torch.bfloat16, cache_enabled=False):
            yield


class TensorFloat32:
    """Whether a GPU may multiply in TF32, with 10 bits of mantissa."""

    name, reduces_precision, may_fail, setup_s = "tf32", True, False, 0.0

    def options(self, context: TrainingContext) -> Sequence[Value]:
        if context.device.type != "cuda" or torch.cuda.get_device_capability(context.device) < (8, 0):
            raise KnobUnavailable("training does not run on a GPU with TF32")
        current = bool(torch.backends.cuda.matmul.allow_tf32)
        return current, not current

    @contextmanager
    def applied(self, value: Value, context: TrainingContext) -> Iterator[None]:  # noqa: ARG002 - a global setting
        matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
        if bool(value) == matmul.allow_tf32:
            yield
            return
        before = matmul.allow_tf32, convolution.allow_tf32
        matmul.allow_tf32 = convolution.allow_tf32 = bool(value)
        try:
            yield
        finally:
            matmul.allow_tf32, convolution.allow_tf32 = before


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
