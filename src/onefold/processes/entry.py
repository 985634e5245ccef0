"""The child's first steps: `python -m MODULE FD` calls `connect_to_parent` in its `main`."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import sys

from onefold.processes.channel import PICKLE, Channel, Encoding

PR_SET_PDEATHSIG = 1  # prctl(2)


def connect_to_parent(encoding: Encoding = PICKLE) -> Channel:
    """Return the channel to the parent, whose descriptor is the first argument of the command line.

    From then on the kernel kills this process when its parent dies (Linux), and Ctrl-C is left to the parent.
    """
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Channel(socket.socket(fileno=int(sys.argv[1])), encoding)


def _die_with_parent() -> None:
    # A closed socket would do for a child that reads, but not for one that is paused or stuck in native code.
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
