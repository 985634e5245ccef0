"""Identities of processes that are never reused, unlike process ids, also after the machine was restarted."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_START_FIELD = 19  # of /proc/PID/stat after the name: clock ticks between boot and the start of the process


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Where and when a process was started. `str` and `parse_identity` make a short text of it, fit for file names."""

    host: str
    boot: str
    namespace: str  # of process ids, as containers have their own
    pid: int
    start: str  # clock ticks since boot; empty if the system does not say

    def __str__(self) -> str:
        return "-".join((self.host, self.boot, self.namespace, str(self.pid), self.start))

    @property
    def is_dead(self) -> bool:
        """Return whether the process has certainly ended: False for one that cannot be seen from here."""
        here = this_process()
        if self.host != here.host:
            return False
        if self.boot != here.boot:
            return True
        return self.namespace == here.namespace and _start(self.pid) != self.start

    @property
    def is_alive(self) -> bool:
        """Return whether the process certainly runs: False for one that cannot be seen from here."""
        here = this_process()
        is_near = (self.host, self.boot, self.namespace) == (here.host, here.boot, here.namespace)
        return is_near and bool(self.start) and _start(self.pid) == self.start

    @property
    def is_suspended(self) -> bool:
        """Return whether the process is stopped by a signal (Ctrl-Z, SIGSTOP)."""
        return self.is_alive and _stat(self.pid)[0] in ("T", "t")


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of a process on this machine, in the same boot and namespace."""
    host, boot, namespace = _place()
    return ProcessIdentity(host, boot, namespace, pid, _start(pid))


def parse_identity(text: str) -> ProcessIdentity | None:
    """Return the identity with this text, or None if there is none."""
    parts = text.split("-")
    if len(parts) != 5 or not parts[3].isdigit():
        return None
    return ProcessIdentity(parts[0], parts[1], parts[2], int(parts[3]), parts[4])


def _start(pid: int) -> str:
    fields = _stat(pid)
    return "" if not fields[0] or fields[0] in ("Z", "X") else fields[_START_FIELD]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, of which the first is the state; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""]


@cache
def _place() -> tuple[str, str, str]:
    return (
        _digest(platform.node()),
        _digest(_read(Path("/proc/sys/kernel/random/boot_id"))),
        _digest(_link(Path("/proc/self/ns/pid"))),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
