"""The store protocol of the queue: jobs, and the attempts at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from onefold.vocabulary.moment import Moment

DEFAULT_TENANT = "default"


class AttemptOutcome(StrEnum):
    """How an attempt ended. The first two also end the job."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # by a person or the system; the study can be resumed
    PAUSED = "paused"  # by the store or the disk
    LOST = "lost"  # its process died

    @property
    def ends_job(self) -> bool:
        """Return whether nothing is left to try."""
        return self in (AttemptOutcome.DONE, AttemptOutcome.FAILED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a job, by one process.

    Args:
        study: The study of the job.
        number: 1, 2, … The last one owns the job; the process of an earlier one has lost it.
        owner: The identity of the process that runs the study.
        cores: The number of cores that it may use.
        epochs: The epochs of the study that were stored when the attempt began.
        began: When the process was started.
        heartbeat: The latest sign of life. It changes as long as the owner lives; an observer takes it for dead if it
            has seen no change for the length of a lease, by the observer's own clock.
        ended: When the attempt ended, or None.
        outcome: How it ended.
    """

    study: str
    number: int
    owner: str
    cores: int
    epochs: int
    began: Moment
    heartbeat: Moment
    ended: Moment | None = None
    outcome: AttemptOutcome | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A study's place in the queue; `folder` is the working directory of the submitter."""

    study: str
    submitted: Moment
    tenant: str = DEFAULT_TENANT
    folder: str = ""
    ended: Moment | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def attempt(self) -> Attempt | None:
        """Return the attempt that has not ended."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].ended is None else None

    @property
    def began(self) -> Moment | None:
        """Return when the job was started for the first time."""
        return self.attempts[0].began if self.attempts else None

    @property
    def response_s(self) -> float | None:
        """Return the seconds from submission to end, or None before the end."""
        return None if self.ended is None else self.ended.since(self.submitted)

    def waited_s(self, now: Moment) -> float:
        """Return the seconds from submission to the first start, or until now."""
        return (self.began or self.ended or now).since(self.submitted)


class JobStore(Protocol):
    """Studies that wait to be run, and those that were."""

    def add_job(self, job: Job) -> None:
        """Append a job to the queue, without attempts. It replaces an earlier one of the same study."""

    def end_job(self, study: str, ended: Moment) -> None:
        """Note when a job ended."""

    def job(self, study: str) -> Job | None:
        """Return the job of a study, or None if it was never submitted."""

    def jobs(self, *, is_open: bool = False) -> list[Job]:
        """Return all jobs, or those that have not ended, in the order in which they were added."""

    def save_attempt(self, attempt: Attempt) -> None:
        """Add or replace an attempt at a job."""

    def save_shares(self, shares: Mapping[str, float]) -> None:
        """Replace the shares of all tenants."""

    def shares(self) -> dict[str, float]:
        """Return the shares of tenants; there are none if the queue is first come, first served."""
