"""The parent's handle of a child process."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onefold.processes.channel import PICKLE, Channel, Encoding
from onefold.processes.guard import owner_mark, start_guard
from onefold.processes.marked import VARIABLE, kill_marked
from onefold.processes.running_clock import PausedTime
from onefold.processes.scratch import worker_folder
from onefold.processes.spawner import start_process

EXIT_TIMEOUT_S = 5.0
START = "onefold.processes.start"
_numbers = itertools.count()


class Worker:
    """A child that runs `python -m MODULE FD` with this process's import path, until it is killed or this process dies.

    Args:
        module: The module to run; its `main` calls `connect_to_parent`.
        environment: Variables that override those of this process.
        defaults: Variables for what this process does not set.
        encoding: How messages are encoded; the child passes the same one to `connect_to_parent`.
        silent: Discard what the child prints. Otherwise all of it goes to stderr, so that it does not mix with the
            parent's output.
        output: A descriptor that receives what the child prints instead.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        module: str,
        *,
        environment: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
        encoding: Encoding = PICKLE,
        silent: bool = False,
        output: int | None = None,
    ) -> None:
        import_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a string
        variables = {**(defaults or {}), **os.environ, "PYTHONPATH": import_path, **(environment or {})}
        start_guard()
        self._mark = f"{owner_mark()}{next(_numbers)}/"
        self._folder = worker_folder()
        variables |= {VARIABLE: self._mark, **_temporary_folders(self._folder, variables)}
        stdout, stderr = (subprocess.DEVNULL, subprocess.DEVNULL) if silent else (2, None)
        if output is not None:
            stdout = stderr = output
        parent_socket, child_socket = socket.socketpair()
        self._paused = PausedTime()
        descriptors = child_socket.fileno(), self._paused.fileno()
        try:
            self._process = start_process(
                lambda: subprocess.Popen(
                    [sys.executable, "-P", "-m", START, module, *map(str, descriptors), str(os.getpid())],
                    pass_fds=descriptors,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                )
            )
        except BaseException:
            parent_socket.close()
            self._paused.close()
            raise
        finally:
            child_socket.close()
        self.channel = Channel(parent_socket, encoding)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any, timeout_s: float | None = None) -> None:
        """Send a message; see `Channel` for what is raised when the child is gone or does not read."""
        self.channel.send(message, timeout_s)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the child's next message: EOFError or OSError when it is gone, TimeoutError when it is late."""
        return self.channel.receive(timeout_s)

    def ask(self, message: Any, timeout_s: float | None = None) -> Any:
        """Send a message and return the reply, both within `timeout_s`."""
        started = time.monotonic()
        self.send(message, timeout_s)
        left_s = None if timeout_s is None else max(timeout_s - (time.monotonic() - started), 0.0)
        return self.receive(left_s)

    def wait(self, timeout_s: float) -> bool:
        """Return whether there is something to receive, a message or the end of the child, within `timeout_s`."""
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @property
    def is_stopped(self) -> bool:
        """Return whether the child is suspended (SIGSTOP), by `pause` or by another program."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it has ended
            return False

    def resident_bytes(self) -> int | None:
        """Return the resident memory of the child; None if it has ended or the system does not report it."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def pause(self) -> None:
        """Suspend the child (SIGSTOP). Its `running_s` stands still meanwhile."""
        self._paused.begin()
        self._process.send_signal(signal.SIGSTOP)  # does nothing to a process that has ended

    def resume(self) -> None:
        """Resume the child (SIGCONT)."""
        self._paused.end()
        self._process.send_signal(signal.SIGCONT)

    def exit_code(self, timeout_s: float = EXIT_TIMEOUT_S) -> int | None:
        """Return the exit code as `subprocess` has it, or None if the child is still there after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Close the channel, kill the child with all its descendants, also those that have detached themselves, and
        delete its temporary files. Harmless when repeated.
        """
        self.channel.close()
        self._paused.close()
        descendants = list(_descendants(self.pid)) if self._process.poll() is None else []
        self._process.kill()
        self._process.wait()
        for pid in descendants:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        kill_marked(self._mark)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _temporary_folders(folder: Path | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return where a child puts temporary files; compiled kernels stay where the next process finds them."""
    if folder is None:
        return {}
    shared = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    return {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": variables.get("TORCHINDUCTOR_CACHE_DIR", str(shared))}


def describe_exit(code: int | None) -> str:
    """Say how a process ended, as a predicate: "was killed by signal 9 (…)", "exited with code 3"."""
    if code is None:
        return "closed its channel but did not exit"
    if code == -signal.SIGKILL:
        return "was killed by signal 9 (SIGKILL, which is also what the kernel sends when memory runs out)"
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was terminated by signal {-code} ({signal.Signals(-code).name})"
    return f"was terminated by signal {-code}"


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes below a process, from Linux's /proc; nothing where there is none."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield int(child)
                yield from _descendants(int(child))
