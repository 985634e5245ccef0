"""A queue of studies on one machine, side by side while there are cores for them.

queue = Queue(home)
queue.submit(study)         # returns the number of jobs before it
queue.run()                 # runs all jobs; those that an earlier server started are adopted, or resumed

The process that serves the queue holds HOME/queue.lock. Jobs and their attempts are in the store.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from onefold.processes import CoreLease
from onefold.processes.clock import now
from onefold.processes.identity import ProcessIdentity, parse_identity, this_process
from onefold.store import Job
from onefold.store.home import Home
from onefold.store.jobs import DEFAULT_TENANT
from onefold.study.queue_server import QueueServer, StartStudy
from onefold.study.study import Study
from onefold.vocabulary.errors import InputError, QueueBusy
from onefold.vocabulary.log import log_of

log = log_of()


class Queue:
    """The queue of a home; `start_study` starts the process of a job."""

    def __init__(self, home: Home, start_study: StartStudy | None = None) -> None:
        self._home = home
        self._start_study = start_study or start_study_process

    def submit(self, study: Study, *, tenant: str = DEFAULT_TENANT) -> int:
        """Append a study to the queue; return the number of jobs before it.

        Args:
            study: The study; its workload must be in a file.
            tenant: On whose behalf; see `share`.
        """
        if not study.spec.workload:
            raise InputError(
                "a study whose workload is defined in a running program cannot be queued; move the workload into a "
                "file and submit FILE.py:Class"
            )
        _check_tenant(tenant)
        with closing(self._home.store()) as store, store.transaction():
            waiting = store.jobs(is_open=True)
            if any(job.study == study.name for job in waiting):
                raise InputError(f"the study {study.name!r} is in the queue already; wait for its end")
            store.add_job(Job(study.name, now(), tenant, str(Path.cwd())))
        return len(waiting)

    def jobs(self) -> list[Job]:
        """Return all jobs in the order of their submission."""
        with closing(self._home.store()) as store:
            return store.jobs()

    def waiting(self) -> list[Job]:
        """Return the jobs that have not ended, in the order of their submission; some may be running."""
        with closing(self._home.store()) as store:
            return store.jobs(is_open=True)

    @property
    def shares(self) -> dict[str, float]:
        """Return the shares of tenants; there are none if the queue is first come, first served."""
        with closing(self._home.store()) as store:
            return store.shares()

    def share(self, shares: Mapping[str, float]) -> None:
        """Divide the machine among tenants in proportion to their shares; without any, first come is first served.

        A tenant who is not mentioned has a share of 1.
        """
        for tenant, share in shares.items():
            _check_tenant(tenant)
            if not 0 < share < float("inf"):
                raise InputError(f"the share of a tenant must be a number above 0, got {tenant}={share:g}")
        with closing(self._home.store()) as store:
            store.save_shares(shares)

    def run(self, on_event: Callable[[str], None] = log.info) -> int:
        """Run jobs until the queue is empty; return how many ended.

        Raises QueueBusy if another process serves the queue, and StoreError if a study could not continue for reasons
        outside of it; that study stays in the queue.
        """
        served = 0
        while True:
            with self._home.locks.queue():
                self._server_file.write_text(str(this_process()))
                served += QueueServer(self._home, self._start_study, on_event).serve()
            # A study submitted just before the lock was released relies on this process.
            if not self.waiting():
                return served

    @property
    def _server_file(self) -> Path:
        return self._home.path / "queue.server"

    @property
    def is_served(self) -> bool:
        """Return whether a process serves the queue now."""
        try:
            with self._home.locks.queue(0.0):
                return False
        except QueueBusy:
            return True

    @property
    def server(self) -> ProcessIdentity | None:
        """Return the process that serves the queue, or None."""
        if not self.is_served or not self._server_file.exists():
            return None
        return parse_identity(self._server_file.read_text())

    def serve_in_background(self) -> None:
        """Start a process that serves the queue until it is empty, unless one is running."""
        if self.is_served:
            return
        with (self._home.path / "queue.log").open("ab") as file:
            subprocess.Popen(
                [sys.executable, "-m", "onefold.study", "serve", str(self._home.path)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env=_environment(self._home),
            )  # fmt: skip


def start_study_process(home: Home, job: Job, lease: CoreLease) -> subprocess.Popen[bytes]:
    """Start the process of a study. It has a session of its own, so that it can outlive the server."""
    cores = ",".join(map(str, lease.cores))
    return subprocess.Popen(
        [sys.executable, "-m", "onefold.study", "run", job.study, str(home.path), cores],
        cwd=job.folder if Path(job.folder).is_dir() else None,
        stdin=subprocess.DEVNULL,
        env=_environment(home),
        pass_fds=[] if lease.descriptor is None else [lease.descriptor],
        start_new_session=True,
    )


def _environment(home: Home) -> dict[str, str]:
    store = {} if home.store_url is None else {"ONEFOLD_STORE": home.store_url}
    return {**os.environ, **store, "PYTHONUNBUFFERED": "1"}


def _check_tenant(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name):
        raise InputError(f"a tenant's name is made of letters, digits, '.', '_' and '-', but got {name!r}")
