"""The store: all durable records, with one protocol per domain; SQLite by default."""

from __future__ import annotations

from pathlib import Path

from onefold.store.jobs import Attempt, AttemptOutcome, Job, JobStore
from onefold.store.kernel_history import CompilationRecord, KernelHistory
from onefold.store.knob_history import KnobHistory
from onefold.store.retraining_history import RetrainingHistory
from onefold.store.serving_history import ServingHistory
from onefold.store.store import Store
from onefold.store.studies import EpochCount, StudyRecord, StudyStore
from onefold.vocabulary.errors import InputError

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "CompilationRecord",
    "EpochCount",
    "Job",
    "JobStore",
    "KernelHistory",
    "KnobHistory",
    "RetrainingHistory",
    "ServingHistory",
    "Store",
    "StudyRecord",
    "StudyStore",
    "open_store",
]  # fmt: skip


def open_store(location: str | Path) -> Store:
    """Open a store, creating it if there is none.

    Args:
        location: A URL (`sqlite:///relative.db`, `sqlite:////absolute/store.db`) or the path of an SQLite file.

    Raises:
        InputError: The URL is of a database that Onefold does not support.
        StoreError: The store cannot be opened, or a newer Onefold wrote it.
    """
    # Imported here, so that naming a StudyRecord does not load a database toolkit.
    from onefold.store.sql_store import SqlStore
    from onefold.store.sqlite import SqliteBackend

    if isinstance(location, str):
        dialect, _, path = location.partition("://")
        if dialect != "sqlite" or len(path) < 2 or path[0] != "/":
            raise InputError(f"the URL of a store has the form sqlite:////path/to/store.db, but got {location!r}")
        location = Path(path[1:])
    return SqlStore(SqliteBackend(location))
