"""The memory that this process may still use: of the machine, its control groups and its resource limits."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED = 2**60


def free_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that this process can allocate before a limit is reached; UNLIMITED if none is known."""
    available = available_bytes(proc)
    room = [UNLIMITED] if available is None else [available]
    room += [limit - usage for limit, usage in group_limits(proc, cgroups)]
    status = process_status(proc)
    room += [limit - status.get(counter, 0) for limit, counter in process_limits()]
    return max(0, min(room))


def available_bytes(proc: Path = PROC) -> int | None:
    """Return the memory that the machine can give without swapping; None if the system does not report it."""
    kibibytes = _read_field(proc / "meminfo", "MemAvailable:")
    return kibibytes * 1024 if kibibytes else None


def process_status(proc: Path = PROC) -> dict[str, int]:
    """Return the Vm* lines of /proc/self/status in bytes; the resident memory alone outside Linux."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return {"VmRSS": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    fields = (line.split() for line in lines if line.startswith("Vm"))
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in fields}


def process_limits() -> list[tuple[int, str]]:
    """Return the resource limits on this process, each with the line of its status that counts against it."""
    kinds = [(resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")]
    limits = [(resource.getrlimit(kind)[0], counter) for kind, counter in kinds]
    return [(limit, counter) for limit, counter in limits if limit != resource.RLIM_INFINITY]


def group_limits(proc: Path = PROC, cgroups: Path = CGROUPS) -> list[tuple[int, int]]:
    """Return limit and usage of each control group of this process, without reclaimable page cache."""
    limits = []
    for folder in _group_folders(proc, cgroups):
        for limit_file, usage_file, inactive_field in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read_number(folder / limit_file), _read_number(folder / usage_file)
            if limit is not None and usage is not None and limit < UNLIMITED:
                limits.append((limit, max(0, usage - _read_field(folder / "memory.stat", inactive_field))))
    return limits


def _group_folders(proc: Path, cgroups: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = cgroups if not controllers else cgroups / "memory"
        if not controllers or "memory" in controllers.split(","):
            leaf = root / path.lstrip("/")
            folders += [leaf, *(parent for parent in leaf.parents if parent.is_relative_to(root))]
    return [folder for folder in folders if folder.is_dir()]


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
