"""Memory use, limit and peak of the process, or of a GPU.

A limit may come from the caller, a control group, a resource limit of the process, or the free memory of the machine.
The lowest counts. It is read again and again, since others may change it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from onefold.meter.free_memory import CGROUPS, PROC, UNLIMITED, available_bytes, group_limits, process_status
from onefold.meter.memory import PROCESS_MEMORY, Peak
from onefold.retraining.address_space_reserve import AddressSpaceReserve
from onefold.retraining.control import RetrainingControl

OUT_OF_MEMORY_MESSAGES = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "could not create a primitive",
)


class MemoryMonitor(Protocol):
    """The memory that a retraining runs in."""

    def open(self) -> None:
        """Prepare for limits that fall; call before the first plan."""

    def close(self) -> None:
        """Undo `open`; call after the last plan."""

    def used(self) -> int:
        """Return the bytes in use now."""

    def limit(self) -> int:
        """Return the bytes that may be in use at most, as of now."""

    def reset_peak(self) -> None:
        """Start measuring the peak anew."""

    def peak(self) -> int | None:
        """Return the peak since `reset_peak`; None if the system does not report it."""

    def highest(self) -> int | None:
        """Return the highest peak of all; None if the system does not report it."""


class ProcessMemory:
    """Resident memory of this process."""

    def __init__(
        self,
        limit_bytes: int | None = None,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
        control: RetrainingControl | None = None,
    ) -> None:
        """`control` may replace the limit at any time."""
        self.limit_bytes, self.proc, self.cgroups, self.control = limit_bytes, proc, cgroups, control
        self.reserve = AddressSpaceReserve(self._status)
        self._peak: Peak | None = None
        self._highest: int | None = None

    def open(self) -> None:
        self.reserve.hold()

    def close(self) -> None:
        self.reserve.close()

    def used(self) -> int:
        return self._status().get("VmRSS", 0)

    def limit(self) -> int:
        used = self.used()
        room = [UNLIMITED]
        room += [limit - usage for limit, usage in group_limits(self.proc, self.cgroups)]
        available = available_bytes(self.proc)
        room += [available] if available is not None else []
        return min(_given_limit(self.limit_bytes, self.control), self.reserve.allowed(), used + min(room))

    def reset_peak(self) -> None:
        self._highest = self.highest()
        if self._peak is not None:
            PROCESS_MEMORY.close(self._peak)
        self._peak = PROCESS_MEMORY.open()

    def peak(self) -> int | None:
        return PROCESS_MEMORY.read(self._peak) if self._peak is not None else None

    def highest(self) -> int | None:
        return max((peak for peak in (self._highest, self.peak()) if peak is not None), default=None)

    def _status(self) -> dict[str, int]:
        return process_status(self.proc)


class GpuMemory:
    """Memory that torch's caching allocator has reserved on a GPU."""

    def __init__(
        self, device: torch.device, limit_bytes: int | None = None, control: RetrainingControl | None = None
    ) -> None:
        """`control` may replace the limit at any time."""
        self.device, self.limit_bytes, self.control = device, limit_bytes, control
        self._highest = 0

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def used(self) -> int:
        return torch.cuda.memory_reserved(self.device)

    def limit(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return min(_given_limit(self.limit_bytes, self.control), self.used() + free)

    def reset_peak(self) -> None:
        self._highest = self.highest()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        return torch.cuda.max_memory_reserved(self.device)

    def highest(self) -> int:
        return max(self._highest, torch.cuda.max_memory_reserved(self.device))


def monitor_for(
    device: torch.device, limit_bytes: int | None, control: RetrainingControl | None = None
) -> MemoryMonitor:
    """Return the monitor of the memory that counts on this device."""
    if device.type == "cuda":
        return GpuMemory(device, limit_bytes, control)
    return ProcessMemory(limit_bytes, control=control)


def _given_limit(limit_bytes: int | None, control: RetrainingControl | None) -> int:
    """Return the limit that was given, or that has replaced it since."""
    if control is not None:
        control.refresh()
        limit_bytes = limit_bytes if control.memory_bytes is None else control.memory_bytes
    return limit_bytes or UNLIMITED


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed; on a CPU torch and oneDNN report that as a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)
