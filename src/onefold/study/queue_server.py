"""The process that serves a queue: it starts studies while cores are free and waits for their end.

Its state can be rebuilt from the store. Studies run in processes that outlive it, hold their cores themselves, and
end their own jobs; a new server adopts those that live.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress

from onefold.processes import CoreLease, available_cores, lease_job_cores
from onefold.processes.clock import now
from onefold.processes.identity import identity_of, parse_identity
from onefold.store import AttemptOutcome, Job, Store
from onefold.store.home import Home
from onefold.study.attempts import Liveness, begin_attempt, deaths_without_progress, end_attempt
from onefold.study.fair_share import ServedJob, next_job
from onefold.study.spec import Spec
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.quantities import duration
from onefold.vocabulary.records import StudyState

MAX_DEATHS = 3  # without an epoch between them
POLL_S = 0.5
INTERRUPTED_EXIT = 130
OUTCOMES = {StudyState.DONE: AttemptOutcome.DONE, StudyState.FAILED: AttemptOutcome.FAILED}

StartStudy = Callable[[Home, Job, CoreLease], "subprocess.Popen[bytes]"]


class QueueServer:
    """Serve the queue of a home until it is empty. The caller holds the queue."""

    def __init__(self, home: Home, start: StartStudy, on_event: Callable[[str], None]) -> None:
        self._home = home
        self._start = start
        self._on_event = on_event
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # by study
        self._watched: set[str] = set()  # studies that run, or did when they were last looked at
        self._liveness = Liveness()
        self._stopped_by = ""  # the study that could not go on, for reasons outside of it

    def serve(self) -> int:
        """Run jobs until none is left; return how many ended. An interruption is passed on to the studies."""
        ended = 0
        try:
            while True:
                with closing(self._home.store()) as store:
                    self._reap(store)
                    ended += self._report_ends(store)
                    waiting = self._waiting(store)
                    if not self._stopped_by:
                        waiting = self._start_jobs(store, waiting)
                    owners = [job.attempt.owner for job in store.jobs(is_open=True) if job.attempt is not None]
                if not self._children and (self._stopped_by or not (waiting or self._watched)):
                    break
                _wait_for_any(owners)
        except KeyboardInterrupt:
            self._interrupt()
            raise
        if self._stopped_by:
            raise StoreError(
                f"the study {self._stopped_by!r} did not run to its end and stays in the queue; serve the queue again"
            )
        return ended

    def _reap(self, store: Store) -> None:
        """Look at what the processes of this server left behind."""
        for study, child in list(self._children.items()):
            exit_code = child.poll()
            if exit_code is None:
                continue
            del self._children[study]
            job = store.job(study)
            if job is None or job.ended is not None or self._is_running(job) or exit_code < 0:
                continue  # one that was killed by a signal is settled like that of an earlier server
            if exit_code in (StoreError.exit_code, INTERRUPTED_EXIT):
                self._stopped_by = study
            elif job.attempt is not None:  # it ended before its study ran, as without the file of its workload
                end_attempt(store, job.attempt, AttemptOutcome.DONE if exit_code == 0 else AttemptOutcome.FAILED)

    def _report_ends(self, store: Store) -> int:
        open_jobs = {job.study for job in store.jobs(is_open=True)}
        ended = sorted(self._watched - open_jobs)
        for study in ended:
            job = store.job(study)
            if job is not None:
                is_done = bool(job.attempts) and job.attempts[-1].outcome is AttemptOutcome.DONE
                self._on_event(f"{study}: {'done' if is_done else 'failed'}")
        self._watched &= open_jobs
        return len(ended)

    def _waiting(self, store: Store) -> list[Job]:
        """Return the jobs that no process runs, and watch the others."""
        waiting = []
        for job in store.jobs(is_open=True):
            if self._is_running(job):
                if job.study not in self._watched:
                    self._on_event(f"{job.study}: runs already; waiting for its end")
                self._watched.add(job.study)
            elif self._settle(store, job):
                self._watched.add(job.study)
            else:
                self._watched.discard(job.study)
                waiting.append(job)
        return waiting

    def _is_running(self, job: Job) -> bool:
        if job.study in self._children or (job.attempt is not None and self._liveness.is_alive(job.attempt)):
            return True
        return self._home.is_running(job.study)

    def _settle(self, store: Store, job: Job) -> bool:
        """End the attempt whose process died; return whether the job has ended with it."""
        attempt = job.attempt
        if attempt is not None:
            has_run = attempt.heartbeat != attempt.began
            outcome = (
                OUTCOMES.get(store.study(job.study).state, AttemptOutcome.LOST) if has_run else AttemptOutcome.LOST
            )
            end_attempt(store, attempt, outcome, attempt.heartbeat)
            job = store.job(job.study) or job
        has_died = (
            job.ended is None and len(job.attempts) >= MAX_DEATHS and job.attempts[-1].outcome is AttemptOutcome.LOST
        )
        if has_died and deaths_without_progress(job, len(store.epochs(job.study)), now().boot) >= MAX_DEATHS:
            self._on_event(f"{job.study}: its process died {MAX_DEATHS} times without finishing an epoch")
            store.end_job(job.study, now())
            return True
        return job.ended is not None

    def _start_jobs(self, store: Store, waiting: Sequence[Job]) -> list[Job]:
        """Start jobs in their order until one does not fit; return those that still wait."""
        waiting, shares, open_jobs = list(waiting), store.shares(), len(store.jobs(is_open=True))
        while waiting:
            position = next_job([job.tenant for job in waiting], _served(store) if shares else (), shares)
            job, available = waiting[position], available_cores()
            spec = Spec.from_json(store.study(job.study).spec)
            lease = lease_job_cores(cores_of(spec, len(available), open_jobs), available)
            if lease is None:
                break
            self._start_job(store, waiting.pop(position), lease)
        return waiting

    def _start_job(self, store: Store, job: Job, lease: CoreLease) -> None:
        try:
            child = self._start(self._home, job, lease)
        finally:
            lease.leave_to_child()
        self._children[job.study] = child
        self._watched.add(job.study)
        begin_attempt(store, job.study, str(identity_of(child.pid)), len(lease.cores))
        verb = "started" if not job.attempts else "resumed"
        self._on_event(f"{job.study}: {verb} after waiting {duration(job.waited_s(now()))}")

    def _interrupt(self) -> None:
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            child.wait()


def cores_of(spec: Spec, available: int, jobs: int) -> int:
    """Return how many cores a study gets while it is one of several jobs.

    All of them if it measures models or uses an accelerator; an equal part if it measures how many it can use.
    """
    parallelism = spec.parallelism
    if spec.devices or spec.compress != "off" or parallelism.accelerator != "cpu":
        return available
    if parallelism.parallel == 0:
        return max(1, available // jobs)
    pairs = [(parallelism.parallel, parallelism.threads), *parallelism.threads_of_few]
    return min(available, max(parallel * threads for parallel, threads in pairs))


def _served(store: Store) -> list[ServedJob]:
    """Return the jobs that were started, in that order."""
    present = now()
    started = [job for job in store.jobs() if job.attempts]
    started.sort(key=lambda job: present.since(job.attempts[0].began), reverse=True)
    return [
        ServedJob(job.tenant, sum(each.cores * (each.ended or present).since(each.began) for each in job.attempts))
        for job in started
    ]


def _wait_for_any(owners: Sequence[str]) -> None:
    """Wait until one of these processes ends, but not for long: jobs are submitted and cores become free as well."""
    with ExitStack() as stack:
        ends = []
        for owner in map(parse_identity, owners):
            if owner is not None and owner.is_alive:
                with suppress(OSError, AttributeError):  # it has ended, or the system has no such descriptors
                    ends.append(os.pidfd_open(owner.pid))
                    stack.callback(os.close, ends[-1])
        select.select(ends, [], [], POLL_S)
