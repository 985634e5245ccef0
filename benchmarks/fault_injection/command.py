"""Run a function in a process forked from this one, which has imported everything already.

A restart thus costs a fraction of a second instead of the seconds that imports take. Processes that the function starts
are not affected. This process has a single thread and runs no numerical code, so that it can be forked.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from fault_injection.syscall_kills import Trace, kill_at_call
from onefold.processes.entry import die_with_parent
from onefold.vocabulary.errors import OnefoldError

MARK = "ONEFOLD_KILLS"  # in the environment of all descendants
ORPHAN_TIMEOUT_S = 30.0


class Command:
    """A function that runs in a forked process, with its output in `folder`/log.

    Its descendants inherit a mark in their environment, by which they are found after its end.
    """

    def __init__(self, function: Callable[[], object], folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.status: int | None = None  # of waitpid
        sys.stdout.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _run(function, folder, self.mark, parent)
        self._pidfd = os.pidfd_open(self.pid)

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended within a time."""
        if self.status is None and select.select([self._pidfd], [], [], max(timeout_s, 0.0))[0]:
            _, self.status = os.waitpid(self.pid, 0)
        return self.status is not None

    def kill(self) -> bool:
        """Kill it; return whether it still ran."""
        if self.wait(0.0):
            return False
        os.kill(self.pid, signal.SIGKILL)
        _, self.status = os.waitpid(self.pid, 0)
        return self.exit_code == -signal.SIGKILL

    def kill_at_call(self, number: int | None, *, before: bool, timeout_s: float) -> Trace:
        """Kill it at a system call."""
        trace = kill_at_call(self.pid, number, before=before, timeout_s=timeout_s)
        self.status = trace.status
        return trace

    def suspend(self, seconds: float) -> bool:
        """Suspend it for a time; return whether it ran."""
        if self.wait(0.0):
            return False
        os.kill(self.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGCONT)
        return True

    def children(self, module: str) -> list[psutil.Process]:
        """Return its descendants that run a module."""
        children = []
        with suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if module in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                        children.append(child)
        return children

    def orphans(self, timeout_s: float = ORPHAN_TIMEOUT_S) -> list[str]:
        """Return the command lines of descendants that still run a while after its end, and kill them."""
        deadline = time.monotonic() + timeout_s
        while (remaining := self._descendants()) and time.monotonic() < deadline:
            time.sleep(0.05)
        lines = []
        for process in remaining:
            with suppress(psutil.Error):
                lines.append(" ".join(process.cmdline()))
                process.kill()
        return lines

    def close(self) -> None:
        """Kill it and its descendants."""
        self.kill()
        self.orphans(0.0)
        os.close(self._pidfd)

    def _descendants(self) -> list[psutil.Process]:
        """Return the processes with its mark, and its guard."""
        descendants = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                line = process.cmdline()
                is_guard = any(word.endswith("marked.py") for word in line) and str(self.pid) in line
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                if is_guard or f"{MARK}={self.mark}".encode() in environment:
                    descendants.append(process)
        return descendants


def _run(function: Callable[[], object], folder: Path, mark: str, parent: int) -> None:
    """Run the function in the forked process, and exit."""
    code = 1
    try:
        die_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        folders = {"TMPDIR": folder / "tmp", "XDG_RUNTIME_DIR": folder / "runtime", "ONEFOLD_HOME": folder / "home"}
        for path in folders.values():
            path.mkdir(exist_ok=True)
        os.environ |= {MARK: mark, **{name: str(path) for name, path in folders.items()}}
        tempfile.tempdir = None
        os.chdir(folder)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        function()
        code = 0
    except OnefoldError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = error.exit_code
    except BaseException:  # noqa: BLE001 - this process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
