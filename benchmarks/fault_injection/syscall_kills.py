"""Kill a process at the n-th of its system calls that change files, before or after the call takes effect.

The process is traced with ptrace(2), so none of its code has to be changed, and the calls of SQLite and other native
code count like those of Python. Only its main thread is traced, which is the one that writes in all of Onefold's
processes. Linux on x86-64 only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SEIZE, INTERRUPT, SYSCALL, GETREGS, DETACH = 0x4206, 0x4207, 24, 12, 17
TRACE_SYSCALLS, KILL_ON_EXIT = 0x1, 0x100000
WALL = 0x40000000  # wait for threads and for processes that are not our children
SYSCALL_STOP = signal.SIGTRAP | 0x80
O_CREAT = 0o100
WRITE, OPENAT = 1, 257
CHANGES = {
    18: "pwrite64", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink",
    88: "symlink", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 316: "renameat2",
}  # fmt: skip


class Registers(ctypes.Structure):
    """`struct user_regs_struct` of x86-64."""

    _fields_ = [(f"r{number}", ctypes.c_ulong) for number in range(27)]

    @property
    def call(self) -> int:
        return int(self.r15)  # orig_rax

    @property
    def first(self) -> int:
        return int(self.r14)  # rdi

    @property
    def third(self) -> int:
        return int(self.r12)  # rdx


@dataclass(frozen=True)
class Trace:
    """The outcome of tracing a process: how many calls were seen, and how it ended."""

    calls: int
    killed_at: str | None = None  # "before rename", "after fsync"; None if it ended, or was not killed, before
    status: int | None = None  # of waitpid, if the process has ended


def is_supported() -> bool:
    """Return whether system calls can be traced on this platform."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def kill_at_call(pid: int, number: int | None, *, before: bool, timeout_s: float) -> Trace:
    """Trace a process until its `number`-th change of a file, and kill it there; None only counts.

    It is killed at any point after `timeout_s`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        return _trace(pid, number, before, time.monotonic() + timeout_s)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _trace(pid: int, number: int | None, before: bool, deadline: float) -> Trace:
    if not _ptrace(SEIZE, pid, TRACE_SYSCALLS | KILL_ON_EXIT):
        return Trace(0)
    _ptrace(INTERRUPT, pid)
    calls, is_entry, change = 0, True, ""
    while True:
        status = _next_stop(pid, deadline)
        if status is None:
            return Trace(calls, "at any point", _kill(pid))
        if not os.WIFSTOPPED(status):
            return Trace(calls, None, status)
        passed_on = 0
        if os.WSTOPSIG(status) == SYSCALL_STOP:
            if is_entry:
                change = _change(pid)
                calls += bool(change)
            if change and calls == number and is_entry == before:
                return Trace(calls, f"{'before' if before else 'after'} {change}", _kill(pid))
            is_entry = not is_entry
        elif status >> 16 == 0:
            passed_on = os.WSTOPSIG(status)
        _ptrace(SYSCALL, pid, passed_on)


def _next_stop(pid: int, deadline: float) -> int | None:
    """Return the status of the next stop or of the end; None if there is none before the deadline."""
    while True:
        try:
            waited, status = os.waitpid(pid, os.WNOHANG | WALL)
        except ChildProcessError:
            return 0
        if waited:
            return status
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return None
        signal.sigtimedwait({signal.SIGCHLD}, min(remaining_s, 1.0))


def _kill(pid: int) -> int:
    """Kill a traced process and wait for it, since its parent is notified of its end only after its tracer."""
    os.kill(pid, signal.SIGKILL)
    while True:
        try:
            _, status = os.waitpid(pid, WALL)
        except ChildProcessError:
            return int(signal.SIGKILL)
        if not os.WIFSTOPPED(status):
            return status


def _change(pid: int) -> str:
    """Return the name of the call that a process enters, or an empty string if it changes no file."""
    registers = Registers()
    if not _ptrace(GETREGS, pid, ctypes.addressof(registers)):
        return ""
    if registers.call == OPENAT:
        return "openat" if registers.third & O_CREAT else ""
    if registers.call == WRITE:
        return "write" if _is_file(pid, registers.first) else ""
    return CHANGES.get(registers.call, "")


def _is_file(pid: int, descriptor: int) -> bool:
    try:
        path = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return False
    return path.startswith("/") and not path.startswith(("/dev", "/proc"))


def _ptrace(request: int, pid: int, data: int = 0) -> bool:
    return int(_function()(request, pid, None, data)) == 0


@cache
def _function() -> Any:
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.argtypes, function.restype = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p], ctypes.c_long
    return function
