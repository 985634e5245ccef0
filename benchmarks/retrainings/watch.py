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

POLL_S = 0.003
REACTION_S = 1.0  # after an intervention, until the later peak counts
GROUP = "ONEFOLD_CGROUP"  # the folder of a delegated control group, in which the kernel enforces the limit too
BUSY_LOOP = "while True: pass"


@dataclass(frozen=True)
class ProcessRun:
    """A process that has ended, as measured from outside."""

    exit_code: int  # below zero: the signal that ended it
    wall_s: float
    peak_bytes: int  # of its resident memory with that of its children, as polled from outside
    high_water_bytes: int  # its high-water mark at the end, which it may have reset
    later_bytes: int  # the peak from REACTION_S after the intervention on
    stdout: str
    stderr: str

    @property
    def result(self) -> dict[str, Any]:
        """Return the JSON object in its last line of output; empty if it failed."""
        return dict(json.loads(self.stdout.splitlines()[-1])) if self.exit_code == 0 else {}


def run_watched(
    arguments: Sequence[str],
    *,
    core: int | None = None,
    intervene_at_s: float = float("inf"),
    intervene: Callable[[int], object] = lambda _: None,
    limit: int | None = None,
) -> ProcessRun:
    """Run Python with these arguments to its end and poll its memory.

    `core` is the only one it may use; `intervene` is called with its pid after `intervene_at_s`.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        group = _group(limit)
        join = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
        began, peak, later, intervened_at = time.monotonic(), 0, 0, float("inf")
        process = subprocess.Popen(
            [*_taskset(core), sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            preexec_fn=join,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )  # fmt: skip
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                peak = max(peak, field(process.pid, "VmHWM"), _tree_bytes(process.pid))
                if time.monotonic() - intervened_at >= REACTION_S:
                    later = max(later, field(process.pid, "VmRSS"))
                if time.monotonic() - began >= intervene_at_s:
                    intervene(process.pid)
                    intervene_at_s, intervened_at = float("inf"), time.monotonic()
                time.sleep(POLL_S)
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
        high_water = usage.ru_maxrss * 1024
        return ProcessRun(
            process.returncode, wall_s, max(peak, high_water), high_water, later, output.read(), errors.read().strip()
        )


@contextmanager
def neighbor(core: int) -> Iterator[None]:
    """Keep a core busy with another process."""
    process = subprocess.Popen([*_taskset(core), sys.executable, "-c", BUSY_LOOP])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _taskset(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "-c", str(core)]


def _tree_bytes(pid: int) -> int:
    """Return the memory of a process and its children; pages that they share count once. 0 without children."""
    tree = [pid, *_children(pid)]
    return sum(_proportional_bytes(member) for member in tree) if len(tree) > 1 else 0


def _children(pid: int) -> list[int]:
    """Return the processes below a process."""
    descendants: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                descendants += [child, *_children(child)]
    return descendants


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
    delegated = os.environ.get(GROUP)
    if limit is None or not delegated:
        return None
    group = Path(delegated) / f"retraining-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir(exist_ok=True)
    is_version_2 = (Path(delegated) / "cgroup.subtree_control").exists()
    (group / ("memory.max" if is_version_2 else "memory.limit_in_bytes")).write_text(str(limit))
    if is_version_2:
        with suppress(OSError):  # a kernel without swap accounting
            (group / "memory.swap.max").write_text("0")
    return group
