"""Attempts at a job: begin one, keep its heartbeat, end it, and tell whether the owner of another one is alive.

Every run of a queued study is an attempt at its job, whether a process of the queue's server or a person started it. So
the job ends with the study, also while no server runs.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from onefold.processes import available_cores
from onefold.processes.clock import now
from onefold.processes.identity import parse_identity, this_process
from onefold.store import Attempt, AttemptOutcome, Job, Store
from onefold.store.home import Home
from onefold.vocabulary.errors import StoreError
from onefold.vocabulary.log import log_of
from onefold.vocabulary.moment import Moment

HEARTBEAT_S = 10.0
LEASE_S = 60.0  # without a heartbeat after which an owner on another machine counts as dead
INTERRUPTIONS = (KeyboardInterrupt, SystemExit, BrokenPipeError)  # requests to stop, not failures of the study

log = log_of()


def begin_attempt(store: Store, study: str, owner: str, cores: int) -> Attempt | None:
    """Begin an attempt for `owner`, or return the one that it owns already; None if the study has no open job.

    An attempt of another process is lost: the caller knows that it is dead, or holds the study.
    """
    with store.transaction():
        job = store.job(study)
        if job is None or job.ended is not None:
            return None
        if job.attempt is not None and job.attempt.owner == owner:
            return job.attempt
        if job.attempt is not None:
            store.save_attempt(replace(job.attempt, ended=job.attempt.heartbeat, outcome=AttemptOutcome.LOST))
        began = now()
        epochs = len(store.epochs(study))
        attempt = Attempt(study, len(job.attempts) + 1, owner, cores, epochs, began, began)
        store.save_attempt(attempt)
        return attempt


def beat(store: Store, attempt: Attempt) -> bool:
    """Renew the heartbeat; return whether the attempt still owns its job."""
    with store.transaction():
        current = _current(store, attempt)
        if current is not None:
            store.save_attempt(replace(current, heartbeat=now()))
        return current is not None


def end_attempt(store: Store, attempt: Attempt, outcome: AttemptOutcome, ended: Moment | None = None) -> bool:
    """End an attempt, and its job if nothing is left to try; return whether the attempt still owned its job."""
    with store.transaction():
        current = _current(store, attempt)
        if current is not None:
            ended = ended or now()
            store.save_attempt(replace(current, ended=ended, outcome=outcome))
            if outcome.ends_job:
                store.end_job(attempt.study, ended)
        return current is not None


def _current(store: Store, attempt: Attempt) -> Attempt | None:
    job = store.job(attempt.study)
    current = None if job is None or job.ended is not None else job.attempt
    is_same = current is not None and (current.number, current.owner) == (attempt.number, attempt.owner)
    return current if is_same else None


@contextmanager
def attempt_at_job(home: Home, study: str, store: Store) -> Iterator[None]:
    """Make the block an attempt at the study's job, if the study is in the queue. The caller holds the study."""
    attempt = begin_attempt(store, study, str(this_process()), len(available_cores()))
    if attempt is None:
        yield
        return
    beat(store, attempt)
    has_ended = threading.Event()
    threading.Thread(target=_keep_alive, args=(home, attempt, has_ended), name="onefold-heartbeat", daemon=True).start()
    try:
        yield
    except BaseException as error:
        with suppress(StoreError):  # the server, or the next one, sees that this process is gone
            end_attempt(store, attempt, _outcome(error))
        raise
    else:
        end_attempt(store, attempt, AttemptOutcome.DONE)
    finally:
        has_ended.set()


def _outcome(error: BaseException) -> AttemptOutcome:
    if isinstance(error, INTERRUPTIONS):
        return AttemptOutcome.INTERRUPTED
    return AttemptOutcome.PAUSED if isinstance(error, StoreError) else AttemptOutcome.FAILED


def _keep_alive(home: Home, attempt: Attempt, has_ended: threading.Event) -> None:
    while not has_ended.wait(HEARTBEAT_S):
        try:
            with closing(home.store()) as store:
                is_owner = beat(store, attempt)
        except StoreError as error:  # such as a full disk; the study itself decides what that means
            log.debug("the heartbeat of study %s could not be saved: %s", attempt.study, error)
            continue
        if not is_owner and not has_ended.is_set():
            log.error("another process has taken over study %s; this one stops", attempt.study)
            _thread.interrupt_main()
            return


class Liveness:
    """Tell which attempts live. Processes of this machine are looked at; for others the heartbeat must change."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[Moment, float]] = {}

    def is_alive(self, attempt: Attempt) -> bool:
        """Return whether the owner of the attempt lives, as far as is known here."""
        owner = parse_identity(attempt.owner)
        if owner is not None and (owner.is_alive or owner.is_dead):
            return owner.is_alive
        key, present_s = (attempt.study, attempt.number), time.monotonic()
        heartbeat, since_s = self._seen.get(key, (None, present_s))
        if heartbeat != attempt.heartbeat:
            since_s = present_s
        self._seen[key] = (attempt.heartbeat, since_s)
        return present_s - since_s < LEASE_S


def deaths_without_progress(job: Job, epochs: int, boot: str) -> int:
    """Return how many of the latest attempts died without an epoch; `epochs` is the number of stored ones.

    Attempts that died with their machine do not count.
    """
    count = 0
    for attempt in reversed(job.attempts):
        if attempt.outcome is not AttemptOutcome.LOST or attempt.epochs != epochs:
            break
        count += attempt.began.boot == boot
    return count
