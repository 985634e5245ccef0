"""Locks between processes: who runs a study, who serves the queue, who takes a measurement."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from onefold.store.errors import OTHER_HOME
from onefold.vocabulary.errors import QueueBusy, StoreError, StudyBusy

LOCK_TIMEOUT_S = 0.5  # whoever checks whether a lock is held holds it for a moment
_RETRY_S = 0.02

MeasurementLock = Callable[[], AbstractContextManager[None]]  # `Locks.measurement` of a home


class Locks(Protocol):
    """Exclusive locks that are held inside a `with` block and end with the process that holds them."""

    def study(self, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> AbstractContextManager[None]:
        """Hold a study; raise StudyBusy if another process holds it for `timeout_s`."""

    def queue(self, timeout_s: float = LOCK_TIMEOUT_S) -> AbstractContextManager[None]:
        """Hold the queue; raise QueueBusy if another process holds it for `timeout_s`."""

    def measurement(self) -> AbstractContextManager[None]:
        """Wait until no other process takes a measurement, then hold the machine."""


class FileLocks:
    """Locks on files below a home folder, for the processes of one machine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @contextmanager
    def study(self, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        try:
            with _locked(self._home / "studies" / name / "lock", timeout_s):
                yield
        except _LockTimeout:
            raise StudyBusy(f"the study {name!r} is being run by another process; wait for it or stop it") from None

    @contextmanager
    def queue(self, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        try:
            with _locked(self._home / "queue.lock", timeout_s):
                yield
        except _LockTimeout:
            raise QueueBusy("the queue is being served by another process already") from None

    def measurement(self) -> AbstractContextManager[None]:
        return _locked(self._home / "measuring.lock", None)


class _LockTimeout(Exception):
    """Another process kept the lock."""


@contextmanager
def _locked(file: Path, timeout_s: float | None) -> Iterator[None]:
    """Hold a file inside the block; None waits without limit."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
    except OSError as error:
        raise StoreError(f"the folder {file.parent} cannot be written ({error.strerror}); {OTHER_HOME}") from error
    with lock:
        if timeout_s is None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        else:
            _poll(lock.fileno(), time.monotonic() + timeout_s)
        yield


def _poll(descriptor: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _LockTimeout from None
            time.sleep(_RETRY_S)
        else:
            return
