"""The kernel's counters of out-of-memory kills, which tell whether a killed process ran out of memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from onefold.agent.probe_program import GROUPS, group_folders

_COUNTERS = ("memory.events", "memory.oom_control")  # of a control group: version 2, version 1
_SYSTEM = Path("/proc/vmstat")


def oom_kills(group: str | None = None, *, groups: Path = GROUPS, system: Path = _SYSTEM) -> int:
    """Return the sum of the kernel's counters of out-of-memory kills: of the system, of this process's control groups
    and of `group`. Only differences mean something: a kill may be counted by several. 0 where there are no counters.
    """
    folders = [*group_folders("memory", groups), *([Path(group)] if group else [])]
    return sum(_count(file) for file in (system, *(folder / name for folder in folders for name in _COUNTERS)))


def _count(file: Path) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
