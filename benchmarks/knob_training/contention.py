"""A process that keeps the first core busy: `python benchmarks/knob_training/contention.py CORE`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

BUSY_PERCENT = 60


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep the first core busy, from the beginning of the block to its end."""
    process = subprocess.Popen([sys.executable, __file__, str(min(os.sched_getaffinity(0)))])
    try:
        while psutil.Process(process.pid).cpu_percent(0.2) < BUSY_PERCENT:
            if process.poll() is not None:
                raise RuntimeError(f"the process that keeps a core busy ended with status {process.returncode}")
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    parent = os.getppid()
    while os.getppid() == parent:  # until it is killed, or its parent is
        for _ in range(100_000):
            math.sqrt(time.monotonic())


if __name__ == "__main__":
    main()
