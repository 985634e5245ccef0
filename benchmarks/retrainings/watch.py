"""Run a program and measure its memory and its duration from outside.

This module imports neither torch nor numpy: a child process inherits the high-water mark of its parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOKED_EVERY_S = 0.003
REACTS_S = 1.0  # after an intervention, until the later peak counts
GROUP = "ONEFOLD_CGROUP"  # the folder of a delegated control group, in which the kernel enforces the limit too
BUSY = "while True: pass"


@dataclass(frozen=True)
class Ran:
    """The outcome of a process."""

    status: int  # below zero: the signal that ended it
    wall_s: float
    peak_bytes: int  # of its resident memory with that of its children, as polled from outside
    marked_bytes: int  # the same since its last reset of the high-water mark
    later_bytes: int  # the peak from REACTS_S after the intervention on
    output: str
    complaint: str

    @property
    def result(self) -> dict[str, Any]:
        """Return its output, parsed; empty if it failed."""
        return dict(json.loads(self.output.splitlines()[-1])) if self.status == 0 else {}


def watched(
    words: Sequence[str],
    order: Any = None,
    *,
    core: int | None = None,
    at_s: float = float("inf"),
    do: Callable[[int], object] = lambda _: None,
    limit: int | None = None,
) -> Ran:
    """Run a Python program to its end and poll its memory.

    `order` is given to it as JSON, `core` is the only one it may use, and `do` is called with its pid after `at_s`.
    """
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        json.dump(order, given)
        given.seek(0)
        group = _group(limit)
        join = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        began, peak, later, done_at = time.monotonic(), 0, 0, float("inf")
        process = subprocess.Popen(
            [*_pinned(core), sys.executable, *words], stdin=given, stdout=output, stderr=errors, preexec_fn=join,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )  # fmt: skip
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                peak = max(peak, field(process.pid, "VmHWM"), _tree_bytes(process.pid))
                if time.monotonic() - done_at >= REACTS_S:
                    later = max(later, field(process.pid, "VmRSS"))
                if time.monotonic() - began >= at_s:
                    do(process.pid)
                    at_s, done_at = float("inf"), time.monotonic()
                time.sleep(LOOKED_EVERY_S)
        except BaseException:  # leave no process behind
            process.kill()
            process.wait()
            raise
        finally:
            if group is not None:
                group.rmdir()
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        complaint = errors.read().strip()
        marked = usage.ru_maxrss * 1024
        return Ran(process.returncode, wall_s, max(peak, marked), marked, later, output.read(), complaint)


@contextmanager
def neighbor(core: int) -> Iterator[None]:
    """Keep a core busy with another process."""
    process = subprocess.Popen([*_pinned(core), sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _pinned(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "-c", str(core)]


def _tree_bytes(pid: int) -> int:
    """Return the memory of a process and its children; pages that they share count once. 0 without children."""
    tree = [pid, *_children(pid)]
    return sum(_proportional_bytes(one) for one in tree) if len(tree) > 1 else 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_children(child)]
    return found


def _proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def field(pid: int, name: str) -> int:
    """Return a field of /proc/PID/status in bytes; 0 if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def kernel_limit() -> str:
    """Describe the limit that the kernel enforces."""
    return "a control group" if os.environ.get(GROUP) else f"none: no control group is delegated in ${GROUP}"


def _group(limit: int | None) -> Path | None:
    """Create a control group with this limit inside the delegated one."""
    given = os.environ.get(GROUP)
    if limit is None or not given:
        return None
    group = Path(given) / f"retraining-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir(exist_ok=True)
    second = (Path(given) / "cgroup.subtree_control").exists()
    (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
    if second:
        with suppress(OSError):  # a kernel without swap accounting
            (group / "memory.swap.max").write_text("0")
    return group
