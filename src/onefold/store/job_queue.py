"""What a store keeps of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Submission:
    """A study's place in the queue. Times are seconds since 1970."""

    study: str
    submitted: float
    folder: str = ""  # the working directory of the submitter
    began: float | None = None
    ended: float | None = None

    @property
    def response_s(self) -> float | None:
        """Return the seconds from submission to end, or None before the end."""
        return None if self.ended is None else self.ended - self.submitted


class JobQueue(Protocol):
    """Studies that wait to be run, and those that were."""

    def save_submission(self, submission: Submission) -> None:
        """Add or replace a study's place in the queue."""

    def submissions(self) -> list[Submission]:
        """Return all submissions in order of arrival, including those that have ended."""
