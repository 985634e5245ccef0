"""What every store complains about, in one wording."""

from __future__ import annotations

from collections.abc import Iterable

from onefold.vocabulary.errors import StoreError, StudyNotFound, suggestion


def unknown_study(name: str, known: Iterable[str]) -> StudyNotFound:
    """No study of that name, with the nearest one."""
    return StudyNotFound(f"there is no study {name!r} in this store{suggestion(name, known)}")


def taken_name(name: str) -> StoreError:
    """A second study of one name."""
    return StoreError(f"there is a study {name!r} already; choose another name, resume it or delete it")


def unknown_trials(study: str, numbers: Iterable[int]) -> StoreError:
    """Trials that were never saved."""
    missing = ", ".join(str(number) for number in numbers)
    return StoreError(f"study {study!r} has no trial {missing}; save a trial before its rungs, epochs and states")
