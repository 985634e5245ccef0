"""The store protocol of retraining: measured memory and gain of plans."""

from __future__ import annotations

from typing import Protocol

from onefold.vocabulary.retraining import MemoryLesson


class RetrainingHistory(Protocol):
    """Peak memory of retraining plans, shared by all retrainings on a machine."""

    def save_lesson(self, lesson: MemoryLesson) -> None:
        """Add or replace the lesson of a plan, identified by machine, model and plan."""

    def lessons(self, machine: str) -> list[MemoryLesson]:
        """Return the lessons of a machine, oldest first; a replaced one counts as new."""
