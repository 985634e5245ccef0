"""Knobs that reduce the precision of arithmetic. They can change what is learned, and are off unless allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from onefold.training.knobs.knob import Job, NotHere
from onefold.vocabulary.records import Value

FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # of processors that multiply bfloat16: x86, x86, Arm


class Precision:
    """The type in which layers multiply; sums and weights stay in float32 (torch's autocast)."""

    name, reduces, risky, start_s = "precision", True, True, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if job.device.type == "cuda":
            if not torch.cuda.is_bf16_supported():
                raise NotHere("the GPU does not multiply bfloat16")
        elif not any(flag in _processor_flags() for flag in FLAGS):
            raise NotHere("the processor does not multiply bfloat16")
        return "float32", "bfloat16"

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:
        if value == "float32":
            yield
            return
        with torch.autocast(job.device.type, torch.bfloat16, cache_enabled=False):  # weights change within the block
            yield


class TensorFloat:
    """Whether a GPU may round what it multiplies to 10 bits of mantissa."""

    name, reduces, risky, start_s = "tf32", True, False, 0.0

    def options(self, job: Job) -> Sequence[Value]:
        if job.device.type != "cuda" or torch.cuda.get_device_capability(job.device) < (8, 0):
            raise NotHere("there is no GPU that has it")
        found = bool(torch.backends.cuda.matmul.allow_tf32)
        return found, not found

    @contextmanager
    def turned(self, value: Value, job: Job) -> Iterator[None]:  # noqa: ARG002 - of the whole process
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


def _processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
