"""Keeps this process to some cores and to so much memory, as on a smaller device.

Memory is limited by a control group where one was handed to this user, otherwise by the limits of the process. A group
that somebody else looks after is left alone, also where root could divide it: a group has one keeper. Handed over are
the groups that a user who is not root may write, as systemd arranges with `Delegate=yes`, and the one that
$ONEFOLD_CGROUP names, a path such as /sys/fs/cgroup/onefold (version 2, with memory in its cgroup.subtree_control) or
/sys/fs/cgroup/memory/onefold (version 1).
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

from onefold.device.probe_program import GROUPS, group_folders
from onefold.vocabulary.errors import DeviceError

GIVEN = "ONEFOLD_CGROUP"
_PREFIX = "onefold-"


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a process is kept to, and by which means: each a name, or "none: " with the reason."""

    cores: tuple[int, ...]
    cores_by: str  # affinity, or none: …
    memory_bytes: int | None
    memory_by: str  # cgroup2, cgroup1, rlimit, or none: …
    group: str | None = None  # the folder of the control group that was made for it


def confine(
    cores: Sequence[int],
    memory_bytes: int | None,
    *,
    groups: Path = GROUPS,
    own: Path = Path("/proc/self/cgroup"),
    environment: Mapping[str, str] = os.environ,
) -> Confinement:
    """Confines this process with all its threads and the children that it will have. Nobody else is touched.

    It cannot be undone, so call it in a process made for it. A control group made here is removed when the process
    ends in an orderly way; groups that killed ones left behind are removed by the next call, or by `remove_group`.
    """
    wanted = tuple(sorted(set(cores)))
    if not wanted:
        raise DeviceError("a process needs at least one core to be confined to, but got none")
    if memory_bytes is not None and memory_bytes < 1:
        raise DeviceError(f"memory_bytes must be a whole number of at least 1, or None, but got {memory_bytes!r}")
    cores_by = _pin(wanted)
    if memory_bytes is None:
        return Confinement(wanted, cores_by, None, "none: no limit was asked for")
    grouped = _join_group(memory_bytes, groups, own, environment)
    if grouped is not None:
        return Confinement(wanted, cores_by, memory_bytes, *grouped)
    return Confinement(wanted, cores_by, memory_bytes, _limit(memory_bytes))


def remove_group(group: str | None) -> bool:
    """Removes the control group that a confined process left behind when it was killed; whether it is gone."""
    if group is None:
        return True
    with suppress(OSError):
        Path(group).rmdir()  # fails as long as somebody is in it
    return not Path(group).exists()


def _pin(cores: tuple[int, ...]) -> str:
    """Pins every thread that there is; those to come inherit it."""
    if not hasattr(os, "sched_setaffinity"):
        return f"none: {sys.platform} lets no process choose its cores"
    allowed = os.sched_getaffinity(0)
    if not set(cores) <= allowed:
        raise DeviceError(
            f"cores must be among those that this process may use, {_listed(allowed)}, but got {_listed(cores)}"
        )
    for task in Path("/proc/self/task").iterdir() if Path("/proc/self/task").exists() else []:
        with suppress(ProcessLookupError):  # a thread that ended meanwhile
            os.sched_setaffinity(int(task.name), cores)
    os.sched_setaffinity(0, cores)
    return "affinity"


def _limit(memory_bytes: int) -> str:
    """Limits what the process may allocate for itself; libraries and files that it maps do not count on Linux."""
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    _, hard = resource.getrlimit(kind)
    most = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    try:
        resource.setrlimit(kind, (most, most))
    except (OSError, ValueError) as error:
        return f"none: the system refuses a limit ({error})"
    return "rlimit"


def _join_group(memory_bytes: int, groups: Path, own: Path, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Makes a group with this limit inside one that was handed to us and joins it; its kind and folder, or None."""
    home = group_folders("memory", groups, own)[:1]
    for parent in _handed_over(groups, own, environment):
        _sweep(parent)
        group = parent / f"{_PREFIX}{os.getpid()}"
        second = (parent / "cgroup.subtree_control").exists()
        try:
            group.mkdir(exist_ok=True)
            (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(memory_bytes))
            if second:
                with suppress(OSError):  # where the kernel has no swap
                    (group / "memory.swap.max").write_text("0")
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            remove_group(str(group))
            continue
        atexit.register(_leave, group, [*home, parent][0], os.getpid())
        return "cgroup2" if second else "cgroup1", str(group)
    return None


def _handed_over(groups: Path, own: Path, environment: Mapping[str, str]) -> list[Path]:
    """The groups that we may make groups in, best first."""
    given = environment.get(GIVEN)
    if given:
        candidates = [Path(given)]
    elif os.geteuid() == 0:
        return []  # to root every group looks as if it were handed over
    else:
        # Version 2 allows no processes in a group that has limited groups inside: ours would stand beside our own.
        found = group_folders("memory", groups, own)
        candidates = [each for one in found[:1] for each in (one, one.parent)]
    return [folder for folder in candidates if os.access(folder, os.W_OK) and _limits_memory(folder)]


def _limits_memory(folder: Path) -> bool:
    """Whether groups made in this folder can limit memory."""
    if (folder / "memory.limit_in_bytes").exists():
        return True
    try:
        return "memory" in (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _sweep(parent: Path) -> None:
    """Removes what killed processes left behind; a group that somebody is in stays."""
    for folder in parent.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX)
        if pid.isdigit() and not Path("/proc", pid).exists():
            remove_group(str(folder))


def _leave(group: Path, home: Path, pid: int) -> None:
    if os.getpid() != pid:  # a child that was forked off inherits this call, but not the right to make it
        return
    with suppress(OSError):
        (home / "cgroup.procs").write_text(str(pid))
    remove_group(str(group))


def _listed(cores: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
