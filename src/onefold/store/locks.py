"""Locks between processes: who runs a study, who serves the queue, who takes a measurement."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onefold.store.errors import OTHER_HOME
from onefold.store.file_identity import FileIdentity
from onefold.vocabulary.errors import QueueBusy, StoreError, StudyBusy

LOCK_TIMEOUT_S = 0.5  # whoever checks whether a lock is held holds it for a moment
_RETRY_S = 0.02

MeasurementLock = Callable[[], AbstractContextManager[None]]  # `Locks.measurement` of a home


class Locks(Protocol):
    """Exclusive locks that are held inside a `with` block and end with the process that holds them."""

    def study(self, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> AbstractContextManager[StudyLock]:
        """Hold a study; raise StudyBusy if another process holds it for `timeout_s`."""

    def is_study_held(self, name: str) -> bool:
        """Return whether a process holds a study; needs no right to write."""

    def queue(self, timeout_s: float = LOCK_TIMEOUT_S) -> AbstractContextManager[None]:
        """Hold the queue; raise QueueBusy if another process holds it for `timeout_s`."""

    def measurement(self) -> AbstractContextManager[None]:
        """Wait until no other process takes a measurement, then hold the machine."""


@dataclass(frozen=True, slots=True)
class StudyLock:
    """A study that this process holds, as long as nobody removes the file."""

    study: str
    file: FileIdentity

    def check(self) -> None:
        """Raise StoreError if the file was removed: another process might hold the study now."""
        if change := self.file.change:
            raise StoreError(
                f"the lock {self.file.path} {change} while study {self.study!r} ran, so that another process might run "
                f"it, too; it was stopped and nothing is lost: resume it"
            )


class FileLocks:
    """Locks on files below a home folder, for the processes of one machine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @contextmanager
    def study(self, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[StudyLock]:
        try:
            with _locked(self._study_file(name), timeout_s) as identity:
                yield StudyLock(name, identity)
        except _LockTimeout:
            raise StudyBusy(f"the study {name!r} is being run by another process; wait for it or stop it") from None

    def is_study_held(self, name: str) -> bool:
        return is_held(self._study_file(name))

    def _study_file(self, name: str) -> Path:
        return self._home / "studies" / name / "lock"

    @contextmanager
    def queue(self, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        try:
            with _locked(self._home / "queue.lock", timeout_s):
                yield
        except _LockTimeout:
            raise QueueBusy("the queue is being served by another process already") from None

    @contextmanager
    def measurement(self) -> Iterator[None]:
        with _locked(self._home / "measuring.lock", None):
            yield


class _LockTimeout(Exception):
    """Another process kept the lock."""


@contextmanager
def _locked(file: Path, timeout_s: float | None) -> Iterator[FileIdentity]:
    """Hold a file inside the block and yield its identity; None waits without limit."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = file.open("w")
        except OSError as error:
            raise StoreError(f"the folder {file.parent} cannot be written ({error.strerror}); {OTHER_HOME}") from error
        with lock:
            if deadline is None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            else:
                _poll(lock.fileno(), deadline)
            identity = FileIdentity(file)
            if identity.is_of(lock.fileno()):  # else the file was replaced while this process waited
                yield identity
                return


def is_held(file: Path) -> bool:
    """Return whether a process holds a lock, without writing anything."""
    try:
        with file.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was never held, or it cannot be read
        return False
    return False


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
