"""The guard of this process: a small program that outlives it for a moment and ends what it leaves behind.

The kernel kills workers when their parent dies, but not the children of workers, and it deletes no files. So whoever
starts workers or creates temporary folders starts a guard first, once. It is in a session of its own, so that what
stops a whole process group does not stop it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from onefold.processes import marked
from onefold.processes.identity import this_process
from onefold.processes.leftovers import owned_folder, remove_leftovers
from onefold.processes.spawner import start_process


class _Guard(subprocess.Popen[bytes]):
    """A child that outlives this process, and is never waited for."""

    def __del__(self) -> None:
        """Do not warn that the child is still running, as `Popen` does: here, and in processes that are forked."""


_lock = threading.Lock()
_guarded: int | None = None  # the process that has a guard; a forked one has none yet
_guard: subprocess.Popen[bytes] | None = None


def start_guard() -> None:
    """Start the guard of this process unless it has one, and remove what earlier processes left behind.

    A worker has the guard of its owner.
    """
    global _guard, _guarded
    with _lock:
        if _guarded == os.getpid() or sys.platform != "linux" or marked.VARIABLE in os.environ:
            return
        _guarded = os.getpid()
    remove_leftovers()
    command = [sys.executable, "-I", "-S", marked.__file__, str(os.getpid()), owner_mark(), str(owned_folder())]
    try:
        _guard = start_process(
            lambda: _Guard(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        )
    except OSError:
        return  # the next start removes what this process leaves behind


def owner_mark() -> str:
    """Return the mark that all workers of this process and their children share; it begins with that of its owner."""
    return f"{os.environ.get(marked.VARIABLE, '')}{this_process()}/"
