"""Leases on processor cores, for all processes of a user: no core gets a second lease while another one is free.

RUNTIME/cores/lock       held while a process chooses cores
RUNTIME/cores/worker-…   a lease: its cores as text. Its holder has a lock on the file (flock), which ends with the
RUNTIME/cores/job-…      holder; the file of a killed one is removed by the next who chooses
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from onefold.processes.runtime_folder import runtime_folder
from onefold.vocabulary.log import log_of

LeaseKind = Literal["worker", "job"]
LOCK_TIMEOUT_S = 2.0  # a process that is suspended while it chooses must not hold up the others
_RETRY_S = 0.005

log = log_of()


class CoreLease:
    """Cores that this process, or the child that inherits `descriptor`, uses until it closes the lease or ends."""

    def __init__(self, cores: Sequence[int], path: Path | None = None, descriptor: int | None = None) -> None:
        self.cores = list(cores)
        self.descriptor = descriptor  # None if leases cannot be written on this machine
        self._path = path

    def close(self) -> None:
        """End the lease. Harmless when repeated."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self.leave_to_child()

    def leave_to_child(self) -> None:
        """Close the lease in this process only, after a child was started with `descriptor`."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        self._path = self.descriptor = None

    def __enter__(self) -> CoreLease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def lease_cores(count: int, among: Sequence[int]) -> CoreLease:
    """Return a lease for a worker on `count` cores, or on all of `among` if there are fewer.

    They are those with the fewest leases on the whole machine; among equals, the first ones.
    """
    try:
        with _choosing() as folder:
            loads = _loads(_live_leases(folder))
            return _write(folder, "worker", sorted(among, key=lambda core: loads[core])[:count])
    except OSError as error:
        log.debug("cores are chosen without regard to other studies: %s", error)
        return CoreLease(among[:count])


def lease_free_cores(count: int, among: Sequence[int]) -> CoreLease | None:
    """Return a lease for a worker on up to `count` cores that no other worker has leased; None if there are none.

    None also if leases cannot be read: then nobody knows which cores are free.
    """
    try:
        with _choosing() as folder:
            loads = _loads([lease for lease in _live_leases(folder) if lease[0] == "worker"])
            free = [core for core in among if not loads[core]][:count]
            return _write(folder, "worker", free) if free else None
    except OSError as error:
        log.debug("no core is known to be free: %s", error)
        return None


def lease_job_cores(count: int, among: Sequence[int]) -> CoreLease | None:
    """Return a lease for a job on `count` cores that no other job has, or None if there are not so many.

    Cores that workers of other studies use are taken last.
    """
    count = min(count, len(among))
    try:
        with _choosing() as folder:
            leases = _live_leases(folder)
            taken = {core for kind, cores in leases if kind == "job" for core in cores}
            loads = _loads(leases)
            free = sorted((core for core in among if core not in taken), key=lambda core: loads[core])
            return _write(folder, "job", sorted(free[:count])) if len(free) >= count else None
    except OSError as error:
        log.warning("jobs of several homes may share cores: %s", error)
        return CoreLease(among[:count])


def least_used_cores(among: Sequence[int]) -> list[int]:
    """Return those of the cores that have the fewest leases on the machine."""
    try:
        with _choosing() as folder:
            loads = _loads(_live_leases(folder))
    except OSError:
        return list(among)
    least = min((loads[core] for core in among), default=0)
    return [core for core in among if loads[core] == least]


def _loads(leases: Sequence[tuple[str, Sequence[int]]]) -> Counter[int]:
    return Counter(core for _, cores in leases for core in cores)


@contextmanager
def _choosing() -> Iterator[Path]:
    """Hold the lock of all who choose cores and yield the folder of leases."""
    folder = runtime_folder() / "cores"
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not try_lock(descriptor, fcntl.LOCK_EX) and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
        yield folder
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, lock: int) -> bool:
    """Lock a file, shared or exclusively, unless another process prevents it; return whether it is locked now."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
        return True
    return False


def _live_leases(folder: Path) -> list[tuple[str, list[int]]]:
    """Return kind and cores of all leases whose holders live, and remove the others."""
    leases = []
    for path in folder.iterdir():
        if path.name == "lock":
            continue
        with suppress(FileNotFoundError), path.open() as file:  # its holder has just closed it
            if try_lock(file.fileno(), fcntl.LOCK_SH):
                path.unlink()
            else:
                leases.append((path.name.partition("-")[0], [int(core) for core in file.read().split()]))
    return leases


def _write(folder: Path, kind: LeaseKind, cores: Sequence[int]) -> CoreLease:
    descriptor, name = tempfile.mkstemp(prefix=f"{kind}-", dir=folder)
    lease = CoreLease(cores, Path(name), descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, " ".join(map(str, cores)).encode())
    except OSError:
        lease.close()
        raise
    return lease
