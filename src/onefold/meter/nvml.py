"""Measure the energy of an NVIDIA GPU with its own counter."""

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
    """Joules of the GPU board that is CUDA device `device` in this process (see `CUDA_VISIBLE_DEVICES`).

    The counter is the board's: it includes other processes on the board, and excludes the processor. GPU work is
    asynchronous, so synchronize (`torch.cuda.synchronize()`) before a window ends. The counter is updated about ten
    times a second, so shorter windows are imprecise. With different GPUs in a machine, `CUDA_DEVICE_ORDER=PCI_BUS_ID`
    makes CUDA number them as NVML does.

    Raises MissingExtra if nvidia-ml-py is not installed. Without a driver or a counter (GPUs before Volta, MIG slices)
    the source is `unavailable`, and `reason` says why.
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
        """Return `nvml`, or `unavailable` if there is no counter."""
        return "unavailable" if self.reason else "nvml"

    def window(self) -> AbstractContextManager[Window]:
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
