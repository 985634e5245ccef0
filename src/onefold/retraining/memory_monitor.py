"""Memory use, limit and peak of the process, or of a GPU.

A limit may come from the caller, a control group, a resource limit of the process, or the free memory of the machine.
The lowest counts. It is read again and again, since others may change it.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Protocol

import torch

from onefold.meter.memory import PROCESS_MEMORY, Peak
from onefold.retraining.address_space_reserve import UNLIMITED, AddressSpaceReserve

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
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

    def __init__(self, limit_bytes: int | None = None, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self.limit_bytes, self.proc, self.cgroups = limit_bytes, proc, cgroups
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
        room += [limit - usage for limit, usage in self._cgroup_limits()]
        available = self._available()
        room += [available] if available is not None else []
        return min(self.limit_bytes or UNLIMITED, self.reserve.allowed(), used + min(room))

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
        """Return the Vm* lines of /proc/self/status in bytes; the resident memory alone outside Linux."""
        try:
            lines = (self.proc / "self" / "status").read_text().splitlines()
        except OSError:
            unit = 1 if sys.platform == "darwin" else 1024
            return {"VmRSS": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
        fields = (line.split() for line in lines if line.startswith("Vm"))
        return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in fields}

    def _cgroup_limits(self) -> list[tuple[int, int]]:
        """Return limit and usage of each control group of this process, without reclaimable page cache."""
        limits = []
        for folder in self._cgroup_folders():
            for limit_file, usage_file, inactive_field in (
                ("memory.max", "memory.current", "inactive_file"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            ):
                limit, usage = _read_number(folder / limit_file), _read_number(folder / usage_file)
                if limit is not None and usage is not None and limit < UNLIMITED:
                    limits.append((limit, max(0, usage - _read_field(folder / "memory.stat", inactive_field))))
        return limits

    def _cgroup_folders(self) -> list[Path]:
        try:
            lines = (self.proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return []
        folders = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            root = self.cgroups if not controllers else self.cgroups / "memory"
            if not controllers or "memory" in controllers.split(","):
                leaf = root / path.lstrip("/")
                folders += [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(root))]
        return [folder for folder in folders if folder.is_dir()]

    def _available(self) -> int | None:
        kibibytes = _read_field(self.proc / "meminfo", "MemAvailable:")
        return kibibytes * 1024 if kibibytes else None


class GpuMemory:
    """Memory that torch's caching allocator has reserved on a GPU."""

    def __init__(self, device: torch.device, limit_bytes: int | None = None) -> None:
        self.device, self.limit_bytes = device, limit_bytes
        self._highest = 0

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def used(self) -> int:
        return torch.cuda.memory_reserved(self.device)

    def limit(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return min(self.limit_bytes or UNLIMITED, self.used() + free)

    def reset_peak(self) -> None:
        self._highest = self.highest()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        return torch.cuda.max_memory_reserved(self.device)

    def highest(self) -> int:
        return max(self._highest, torch.cuda.max_memory_reserved(self.device))


def monitor_for(device: torch.device, limit_bytes: int | None) -> MemoryMonitor:
    """Return the monitor of the memory that counts on this device."""
    return GpuMemory(device, limit_bytes) if device.type == "cuda" else ProcessMemory(limit_bytes)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed; on a CPU torch and oneDNN report that as a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_field(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0
