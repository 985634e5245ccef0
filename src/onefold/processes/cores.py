"""The processor cores that this process may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path


def available_cores() -> list[int]:
    """Return the numbers of the cores that this process may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin_to_cores(cores: Sequence[int]) -> None:
    """Pin every thread of this process to `cores`; do nothing if there are none or the system cannot pin."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
