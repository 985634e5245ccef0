"""Errors that every store raises, in one wording."""

from __future__ import annotations

from collections.abc import Iterable

from onefold.vocabulary.errors import StoreError, StudyNotFound, unknown

OTHER_HOME = "use another home folder"


def unknown_study(name: str, known: Iterable[str]) -> StudyNotFound:
    """Return the error for a study that does not exist, with the nearest name that does."""
    return StudyNotFound(unknown("study", name, known))


def name_taken(name: str) -> StoreError:
    """Return the error for a second study with the same name."""
    return StoreError(f"there is a study {name!r} already; choose another name, resume it or delete it")


def unknown_trials(study: str, numbers: Iterable[int]) -> StoreError:
    """Return the error for trials that were never saved."""
    missing = ", ".join(str(number) for number in numbers)
    return StoreError(f"study {study!r} has no trial {missing}; save a trial before its rungs, epochs and states")
