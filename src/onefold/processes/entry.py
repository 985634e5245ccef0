"""The child's first steps: `start.py` ties it to its parent, then its `main` calls `connect_to_parent`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys

from onefold.processes.channel import PICKLE, Channel, Encoding
from onefold.processes.spawner import LEFT_TO_PARENT

PR_SET_PDEATHSIG = 1  # prctl(2)


def connect_to_parent(encoding: Encoding = PICKLE) -> Channel:
    """Return the channel to the parent, whose descriptor is the first argument of the command line."""
    return Channel(socket.socket(fileno=int(sys.argv[1])), encoding)


def leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and the end of the terminal, which reach this process too: the parent decides what they mean."""
    for number in LEFT_TO_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_PARENT)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies (Linux); exit at once if that has happened already.

    A closed channel would do for a child that reads, but not for one that is paused or stuck in native code.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
