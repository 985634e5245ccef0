"""Run a program and measure the memory of all its processes from outside.

The measuring happens in a process of its own, which imports little: a program inherits the high-water mark of the
process that started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_S = 0.003


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    status: int
    wall_s: float
    peak_bytes: int  # the highest sum over its processes at one time, and the high-water mark of the first
    output: str
    errors: str


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> Ended:
    """Run a program to its end."""
    done = subprocess.run(
        [sys.executable, __file__, *command],
        capture_output=True, text=True, env={**os.environ, **(environment or {})}, check=True,
    )  # fmt: skip
    return Ended(**json.loads(done.stdout))


def _watch(command: Sequence[str]) -> Ended:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began, peak = time.monotonic(), 0
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, _field(process.pid, "status", "VmHWM:"), _tree_bytes(process.pid))
            time.sleep(POLL_S)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        peak = max(peak, usage.ru_maxrss * 1024)
        return Ended(process.returncode, wall_s, peak, output.read(), errors.read())


def _tree_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants; pages that they share count once."""
    tree = [pid, *_descendants(pid)]
    return sum(_field(one, "smaps_rollup", "Pss:") for one in tree) if len(tree) > 1 else 0


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _field(pid: int, file: str, name: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_watch(sys.argv[1:]))))
