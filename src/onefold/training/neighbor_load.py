"""The load that other processes put on the cores of this process."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

BUSY_COLUMNS = (1, 3, 6, 7, 8)  # of a core's line in /proc/stat: user, system, irq, softirq, steal
NICE_COLUMN = 2  # processes of low priority, which give way to others
SAMPLE_S = 0.05  # during which this process rests while the load of each core is measured


class NeighborLoad(Protocol):
    """Measures the processor time that other processes take."""

    def others_s(self) -> float:
        """Return the processor time of other processes on the cores of this process, since any fixed time."""


class StatLoad:
    """Reads `/proc/stat`; where there is none, other processes seem to take no time.

    Processes of lower priority (`nice`) do not count, unless this one has a low priority too.
    """

    def __init__(self, cores: Iterable[int], stat: Path = Path("/proc/stat")) -> None:
        self._cores = tuple(cores)
        self._stat = stat
        self._columns = BUSY_COLUMNS if os.nice(0) <= 0 else (*BUSY_COLUMNS, NICE_COLUMN)

    def others_s(self) -> float:
        """Return the processor time of other processes on these cores, since any fixed time."""
        busy = self._busy_s()
        return sum(busy.values()) - _own_s() if busy else 0.0

    def quietest_first(self) -> tuple[int, ...]:
        """Return the cores, those with the least load of other processes first. Takes SAMPLE_S, in which it sleeps."""
        before = self._busy_s()
        time.sleep(SAMPLE_S)
        after = self._busy_s()
        return tuple(sorted(self._cores, key=lambda core: after.get(core, 0.0) - before.get(core, 0.0)))

    def _busy_s(self) -> dict[int, float]:
        names = {f"cpu{core}": core for core in self._cores}
        try:
            rows = [line.split() for line in self._stat.read_text().splitlines() if line.startswith("cpu")]
        except OSError:
            return {}
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        return {
            names[row[0]]: sum(int(row[column]) for column in self._columns) / ticks_per_s
            for row in rows
            if row[0] in names
        }


def _own_s() -> float:
    """Return the processor time of this process and its children, such as data loader workers."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(_process_s(child.pid) for child in multiprocessing.active_children())
    return time.process_time() + ended.ru_utime + ended.ru_stime + living


def _process_s(pid: int | None) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has ended
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
