"""How much memory this process has, how much it may have now, and how much it had at most.

A limit can come from the caller, from a control group, from the limits of the process, or from what the machine has
left; the least of them counts, and it is read again and again, since others may change it.
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
GROUPS = Path("/sys/fs/cgroup")

TOLD = ("not enough memory", "can't allocate memory", "out of memory", "could not create a primitive")


class MemoryMonitor(Protocol):
    """The memory that a retraining lives in."""

    def open(self) -> None:
        """Before the first plan: gets ready for limits that fall."""

    def close(self) -> None:
        """After the last one."""

    def used(self) -> int:
        """Bytes of this process now."""

    def limit(self) -> int:
        """Bytes that it may have at most, as things stand now."""

    def begin(self) -> None:
        """Begins to watch the peak anew."""

    def peak(self) -> int | None:
        """The peak since; None where the system does not tell."""

    def highest(self) -> int | None:
        """The highest of all peaks."""


class ProcessMemory:
    """The resident memory of this process, as the system counts it."""

    def __init__(self, asked: int | None = None, proc: Path = PROC, groups: Path = GROUPS) -> None:
        self.asked, self.proc, self.groups = asked, proc, groups
        self.spare = AddressSpaceReserve(self._status)
        self._peak: Peak | None = None
        self._highest: int | None = None

    def open(self) -> None:
        self.spare.hold()

    def close(self) -> None:
        self.spare.close()

    def used(self) -> int:
        return self._status().get("VmRSS", 0)

    def limit(self) -> int:
        used = self.used()
        room = [UNLIMITED]
        room += [limit - usage for limit, usage in self._group_limits()]
        available = self._available()
        room += [available] if available is not None else []
        return min(self.asked or UNLIMITED, self.spare.allowed(), used + min(room))

    def begin(self) -> None:
        self._highest = self.highest()
        if self._peak is not None:
            PROCESS_MEMORY.close(self._peak)
        self._peak = PROCESS_MEMORY.open()

    def peak(self) -> int | None:
        return PROCESS_MEMORY.read(self._peak) if self._peak is not None else None

    def highest(self) -> int | None:
        return max((one for one in (self._highest, self.peak()) if one is not None), default=None)

    def _status(self) -> dict[str, int]:
        try:
            lines = (self.proc / "self" / "status").read_text().splitlines()
        except OSError:  # no Linux
            return {
                "VmRSS": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            }
        fields = (line.split() for line in lines if line.startswith("Vm"))
        return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in fields}

    def _group_limits(self) -> list[tuple[int, int]]:
        """Limit and usage of every control group that this process is in; what can be dropped is not counted."""
        found = []
        for folder in self._folders():
            for most, usage, inactive in (
                ("memory.max", "memory.current", "inactive_file"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            ):
                limit, used = _number(folder / most), _number(folder / usage)
                if limit is not None and used is not None and limit < UNLIMITED:
                    found.append((limit, max(0, used - _field(folder / "memory.stat", inactive))))
        return found

    def _folders(self) -> list[Path]:
        try:
            lines = (self.proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return []
        folders = []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            root = self.groups if not controllers else self.groups / "memory"
            if not controllers or "memory" in controllers.split(","):
                inner = root / path.lstrip("/")
                folders += [inner, *(one for one in inner.parents if one.is_relative_to(root))]
        return [folder for folder in folders if folder.is_dir()]

    def _available(self) -> int | None:
        found = _field(self.proc / "meminfo", "MemAvailable:")
        return found * 1024 if found else None


class AcceleratorMemory:
    """What torch holds on a GPU."""

    def __init__(self, device: torch.device, asked: int | None = None) -> None:
        self.device, self.asked = device, asked
        self._highest = 0

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def used(self) -> int:
        return torch.cuda.memory_reserved(self.device)

    def limit(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return min(self.asked or UNLIMITED, self.used() + free)

    def begin(self) -> None:
        self._highest = self.highest()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        return torch.cuda.max_memory_reserved(self.device)

    def highest(self) -> int:
        return max(self._highest, torch.cuda.max_memory_reserved(self.device))


def monitor_for(device: torch.device, asked: int | None) -> MemoryMonitor:
    """The memory that counts on this device."""
    return AcceleratorMemory(device, asked) if device.type == "cuda" else ProcessMemory(asked)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was not enough of it; torch and oneDNN say so on a processor in a plain RuntimeError."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in str(error) for words in TOLD)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _field(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0
