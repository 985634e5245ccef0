"""Find and kill processes by a variable in their environment, which children inherit however they detach themselves.

This file imports nothing of Onefold, since it is also a program: `python marked.py OWNER MARK FOLDER` waits until the
process OWNER has ended, however it was killed, then kills every process with MARK and deletes FOLDER.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

VARIABLE = "ONEFOLD_WORKER"  # OWNER/NUMBER/: who started the worker; a worker of a worker has another OWNER/NUMBER/
ROUNDS = 50  # a process may start another one while it is looked for
POLL_S = 0.5


def marked_processes(mark: str = "") -> Iterator[tuple[int, str]]:
    """Yield the process ids with a mark that begins with `mark`, and the whole mark. Needs Linux's /proc."""
    prefix = f"{VARIABLE}={mark}".encode()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:  # noqa: PTH112, PTH208 - no pathlib: starts faster
        if not name.isdigit():
            continue
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
            for entry in file.read().split(b"\0"):
                if entry.startswith(prefix):
                    yield int(name), entry.partition(b"=")[2].decode(errors="replace")


def kill_marked(mark: str) -> None:
    """Kill all processes whose mark begins with `mark`, except this one, until none is left."""
    for _ in range(ROUNDS):
        pids = [pid for pid, _ in marked_processes(mark) if pid != os.getpid()]
        if not pids:
            return
        for pid in pids:
            kill_if_marked(pid, mark)
        time.sleep(0.01)


def kill_if_marked(pid: int, mark: str) -> None:
    """Kill a process that still has the mark, not another one that got its id."""
    with suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, signal.SIGKILL)
            return
        descriptor = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
                if f"{VARIABLE}={mark}".encode() in file.read():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _wait_for_end(owner: int) -> None:
    try:
        descriptor = os.pidfd_open(owner)
    except (OSError, AttributeError):
        while os.getppid() == owner:
            time.sleep(POLL_S)
        return
    if os.getppid() == owner:  # otherwise it has ended already
        select.select([descriptor], [], [])


def main(owner: str, mark: str, folder: str) -> None:
    """Guard a process: end what it leaves behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its owner, after it
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _wait_for_end(int(owner))
    kill_marked(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
