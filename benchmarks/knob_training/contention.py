"""A process that keeps the first core busy: `python benchmarks/knob_training/contention.py CORE`."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep the first core busy, from the beginning of the block to its end."""
    command = [sys.executable, __file__, str(min(os.sched_getaffinity(0)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"the process that keeps a core busy ended with status {process.wait()}")
            yield
        finally:
            process.kill()


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    parent = os.getppid()
    print("busy", flush=True)
    while os.getppid() == parent:  # until it is killed, or its parent is
        for _ in range(100_000):
            math.sqrt(time.monotonic())


if __name__ == "__main__":
    main()
