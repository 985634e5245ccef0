"""Start child processes from one thread that lives as long as this process.

On Linux the parent-death signal fires when the *thread* that started the child ends (prctl(2)), and callers start
workers from short-lived threads.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future

LEFT_TO_PARENT = (signal.SIGINT, signal.SIGHUP)  # of the signals that a terminal sends to parent and children alike
Start = Callable[[], "subprocess.Popen[bytes]"]
_Request = tuple[Start, "Future[subprocess.Popen[bytes]]"]


class Spawner:
    """Run start functions one after the other on a daemon thread."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, start: Start) -> subprocess.Popen[bytes]:
        """Call `start` on the thread; return its process, or raise what it raises."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onefold-spawner", daemon=True)
                self._thread.start()
        process: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((start, process))
        return process.result()

    def _run(self) -> None:
        # Children inherit this mask and keep it until they ignore these signals: they are meant for this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_PARENT)
        while True:
            start, process = self._requests.get()
            try:
                process.set_result(start())
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                process.set_exception(error)
            del start, process  # the caller alone decides how long a process object lives


spawner = Spawner()


def _replace_after_fork() -> None:
    global spawner  # threads do not survive a fork
    spawner = Spawner()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_after_fork)


def start_process(start: Start) -> subprocess.Popen[bytes]:
    """Start a child that outlives the calling thread but not this process."""
    return spawner.start(start)
