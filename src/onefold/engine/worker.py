"""The far side of a process engine: `python -m onefold.engine.worker FD` runs calls until its coordinator is gone.

Messages are pickled tuples over a socket that only the parent process holds the other end of:

    in    ("setup", bytes)   ("run", run, bytes, cores)   ("stop", run)
    out   ("ready",)   ("unfit", error)   ("tick", run)   ("report", run, value)
          ("done", run, value)   ("failed", run, failure)   ("stopped", run)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from onefold.engine.failures import failure_of
from onefold.vocabulary.errors import EngineError, OnefoldError

TICK_EVERY_S = 0.5
PR_SET_PDEATHSIG = 1  # prctl(2)


def serve(channel: Connection, memory_bytes: int | None) -> None:
    """Sets up, then runs one call after the other."""
    inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    stopped: set[int] = set()
    threading.Thread(target=_listen, args=(channel, inbox, stopped), daemon=True).start()
    context: Any = None
    while True:
        kind, *content = inbox.get()
        try:
            if kind == "setup":
                function, args = pickle.loads(content[0])
                context = function(*args)
                if memory_bytes is not None:
                    _limit_memory(memory_bytes)
                channel.send(("ready",))
            elif kind == "run":
                _run(channel, context, stopped, *content)
        except BrokenPipeError:
            return
        except Exception as error:  # noqa: BLE001 - the coordinator raises it
            channel.send(("unfit", _told(error)))


def _told(error: Exception) -> OnefoldError:
    """The error as the coordinator can raise it: our own as they are, others in one sentence."""
    if isinstance(error, OnefoldError):
        return error
    return EngineError(f"a worker cannot be set up: {type(error).__name__}: {error}")


def _run(channel: Connection, context: Any, stopped: set[int], run: int, work: bytes, cores: Sequence[int]) -> None:
    _pin(cores)
    last_tick = time.monotonic()

    def tick() -> None:
        nonlocal last_tick
        if time.monotonic() - last_tick > TICK_EVERY_S:
            last_tick = time.monotonic()
            channel.send(("tick", run))

    try:
        function, args = pickle.loads(work)
        call = function(context, *args, tick=tick)
        try:
            while run not in stopped:
                channel.send(("report", run, next(call)))
            call.close()
            channel.send(("stopped", run))
        except StopIteration as end:
            channel.send(("done", run, end.value))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - a failing call is a value
        channel.send(("failed", run, failure_of(error)))


def _listen(channel: Connection, inbox: queue.SimpleQueue[tuple[Any, ...]], stopped: set[int]) -> None:
    while True:
        try:
            message = channel.recv()
        except (EOFError, OSError):
            os._exit(0)  # the coordinator is gone: leave at once, the checkpoint is what counts
        if message[0] == "stop":
            stopped.add(message[1])
        else:
            inbox.put(message)


def _pin(cores: Sequence[int]) -> None:
    """Confines every thread of this process, also those that an earlier call left behind."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            os.sched_setaffinity(int(thread.name), cores)


def _limit_memory(memory_bytes: int) -> None:
    """Lets this process take that much more than what it holds now; beyond it, allocations fail."""
    held = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            held = int(line.split()[1]) * 1024
    limit = held + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _die_with_parent() -> None:
    """Has the system end this process with its coordinator, also while it is held still and hears nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Reads the socket's number, the memory limit and the module path from the command line."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    descriptor, memory, *path = sys.argv[1:]
    sys.path[:] = path
    serve(Connection(int(descriptor)), int(memory) or None)


if __name__ == "__main__":
    main()
