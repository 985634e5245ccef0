"""Joules of an NVIDIA GPU, from its own counter. The only home of pynvml."""

from __future__ import annotations

import importlib
import os
from contextlib import AbstractContextManager
from typing import Any

from onefold.meter.meter import Window
from onefold.meter.window import UNAVAILABLE, EnergySoFar, process_window
from onefold.vocabulary.errors import MissingExtra
from onefold.vocabulary.records import Energy


class NvmlMeter:
    """Joules of one GPU board: the one that CUDA calls `device` in this process, by `CUDA_VISIBLE_DEVICES`.

    The counter is the board's: what other processes do on it at the same time is in the sum, and the processor is not.
    GPU work runs behind the program's back, so wait for it (`torch.cuda.synchronize()`) before a window ends. The
    counter moves about ten times a second: windows much shorter than that are rough. On a machine with unlike GPUs,
    `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes CUDA number them as NVML does.

    MissingExtra when nvidia-ml-py is not installed. Without a driver or a counter (GPUs before Volta, slices of a
    shared GPU) the meter says `unavailable`, and `reason` says why.
    """

    def __init__(self, device: int = 0, *, nvml: Any = None) -> None:
        self._nvml = nvml or _load_nvml()
        self._handle: Any = None
        self.reason = ""
        try:
            self._nvml.nvmlInit()
            self._handle = self._find(device)
            self._joules()
        except self._nvml.NVMLError as error:
            self.reason = f"GPU {device} has no energy counter: {error}"
        except LookupError:
            self.reason = f"there is no GPU {device} in CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}"

    @property
    def source(self) -> str:
        """`nvml`, or `unavailable` where there is no counter."""
        return "unavailable" if self.reason else "nvml"

    def window(self) -> AbstractContextManager[Window]:
        """Opens a window."""
        return process_window(self._start)

    def _start(self) -> EnergySoFar:
        if self.reason:
            return lambda _: UNAVAILABLE
        try:
            start_j = self._joules()
        except self._nvml.NVMLError:
            return lambda _: UNAVAILABLE

        def so_far(_: float) -> Energy:
            try:
                return Energy(self._joules() - start_j, "nvml")
            except self._nvml.NVMLError:
                return UNAVAILABLE

        return so_far

    def _find(self, device: int) -> Any:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        name = str(device) if visible is None else visible.split(",")[device].strip()
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _joules(self) -> float:
        millijoules: int = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        return millijoules / 1000


def _load_nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingExtra("nvidia-ml-py", "gpu") from error
