"""Confine this process to some cores and an amount of memory, as on a smaller device.

Memory is limited by a control group if one is delegated to this user, otherwise by an rlimit of the process. Other
control groups are never touched, not even by root, since a group has a single manager. Delegated are the groups that a
non-root user may write (systemd: `Delegate=yes`) and the one that $ONEFOLD_CGROUP names: /sys/fs/cgroup/onefold
(version 2, with memory in its cgroup.subtree_control) or /sys/fs/cgroup/memory/onefold (version 1).
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onefold.agent.probe_program import GROUPS, group_folders
from onefold.processes import pin_to_cores
from onefold.vocabulary.errors import DeviceError

CGROUP_VARIABLE = "ONEFOLD_CGROUP"
_PREFIX = "onefold-"


@dataclass(frozen=True, slots=True)
class Confinement:
    """The limits of a process and the mechanism that enforces each: its name, or "none: " and the reason."""

    cores: tuple[int, ...]
    cores_by: str  # affinity, or none: …
    memory_bytes: int | None
    memory_by: str  # cgroup2, cgroup1, rlimit, or none: …
    group: str | None = None  # the folder of the control group created for it


def confine(
    cores: Sequence[int],
    memory_bytes: int | None,
    *,
    groups: Path = GROUPS,
    own: Path = Path("/proc/self/cgroup"),
    environment: Mapping[str, str] = os.environ,
) -> Confinement:
    """Confine this process, its threads and its future children; no other process is affected.

    This cannot be undone: call it in a process started for the purpose. A control group created here is removed when
    the process exits normally; those of killed processes are removed by the next call or by `remove_group`. Raises
    DeviceError if `cores` is empty or not available, or `memory_bytes` is below 1.
    """
    pinned = tuple(sorted(set(cores)))
    if not pinned:
        raise DeviceError("cores must name at least one core, got none")
    if memory_bytes is not None and memory_bytes < 1:
        raise DeviceError(f"memory_bytes must be an integer of at least 1 or None, got {memory_bytes!r}")
    cores_by = _pin(pinned)
    if memory_bytes is None:
        return Confinement(pinned, cores_by, None, "none: no limit was requested")
    joined = _join_group(memory_bytes, groups, own, environment)
    if joined is not None:
        return Confinement(pinned, cores_by, memory_bytes, *joined)
    return Confinement(pinned, cores_by, memory_bytes, _set_rlimit(memory_bytes))


def remove_group(group: str | None) -> bool:
    """Remove the control group of a confined process that was killed. Return whether it is gone."""
    if group is None:
        return True
    with suppress(OSError):
        Path(group).rmdir()  # fails while a process is in it
    return not Path(group).exists()


def _pin(cores: tuple[int, ...]) -> str:
    """Pin all present threads; future threads inherit the affinity."""
    if not hasattr(os, "sched_setaffinity"):
        return f"none: {sys.platform} has no CPU affinity"
    allowed = os.sched_getaffinity(0)
    if not set(cores) <= allowed:
        raise DeviceError(
            f"cores must be among those that this process may use ({_listed(allowed)}), got {_listed(cores)}"
        )
    pin_to_cores(cores)
    os.sched_setaffinity(0, cores)  # raises if the system refuses
    return "affinity"


def _set_rlimit(memory_bytes: int) -> str:
    """Limit the memory that the process may allocate; on Linux, mapped libraries and files do not count."""
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _, hard = resource.getrlimit(kind)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    try:
        resource.setrlimit(kind, (limit, limit))
    except (OSError, ValueError) as error:
        return f"none: the system refuses the limit ({error})"
    return "rlimit"


def _join_group(memory_bytes: int, groups: Path, own: Path, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Create and join a group with this limit inside a delegated one. Return its version and folder, or None."""
    home = group_folders("memory", groups, own)[:1]
    for parent in _delegated_groups(groups, own, environment):
        _remove_stale_groups(parent)
        group = parent / f"{_PREFIX}{os.getpid()}"
        is_version_2 = (parent / "cgroup.subtree_control").exists()
        try:
            group.mkdir(exist_ok=True)
            (group / ("memory.max" if is_version_2 else "memory.limit_in_bytes")).write_text(str(memory_bytes))
            if is_version_2:
                with suppress(OSError):  # a kernel without swap accounting
                    (group / "memory.swap.max").write_text("0")
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            remove_group(str(group))
            continue
        atexit.register(_leave, group, [*home, parent][0], os.getpid())
        return "cgroup2" if is_version_2 else "cgroup1", str(group)
    return None


def _delegated_groups(groups: Path, own: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the groups that this user may create groups in, best first."""
    named = environment.get(CGROUP_VARIABLE)
    if named:
        candidates = [Path(named)]
    elif os.geteuid() == 0:
        return []  # root may write every group, so writability does not imply delegation
    else:
        # Version 2 allows no processes in a group with limited subgroups: then a sibling of our group is created.
        current = group_folders("memory", groups, own)[:1]
        candidates = [folder for group in current for folder in (group, group.parent)]
    return [folder for folder in candidates if os.access(folder, os.W_OK) and _limits_memory(folder)]


def _limits_memory(folder: Path) -> bool:
    """Return whether groups created in this folder can limit memory."""
    if (folder / "memory.limit_in_bytes").exists():
        return True
    try:
        return "memory" in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _remove_stale_groups(parent: Path) -> None:
    """Remove the groups of killed processes."""
    for folder in parent.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX)
        if pid.isdigit() and not Path("/proc", pid).exists():
            remove_group(str(folder))


def _leave(group: Path, home: Path, pid: int) -> None:
    if os.getpid() != pid:  # a forked child inherits this exit handler, but the group is not its own
        return
    with suppress(OSError):
        (home / "cgroup.procs").write_text(str(pid))
    remove_group(str(group))


def _listed(cores: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
