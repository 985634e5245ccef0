"""The child's first steps: `start.py` ties it to its parent, then its `main` calls `connect_to_parent`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys

from onefold.processes.channel import PICKLE, Channel, Encoding

PR_SET_PDEATHSIG = 1  # prctl(2)


def connect_to_parent(encoding: Encoding = PICKLE) -> Channel:
    """Return the channel to the parent, whose descriptor is the first argument of the command line.

    From then on Ctrl-C is left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Channel(socket.socket(fileno=int(sys.argv[1])), encoding)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies (Linux); exit at once if that has happened already.

    A closed channel would do for a child that reads, but not for one that is paused or stuck in native code.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
