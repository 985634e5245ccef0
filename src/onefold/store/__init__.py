"""What happened, durable: SQLite by default, memory for tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onefold.store.memory import MemoryStore
from onefold.store.store import Store, StudyRecord, Submission

if TYPE_CHECKING:
    from onefold.store.sqlite import SqliteStore

__all__ = ["MemoryStore", "SqliteStore", "Store", "StudyRecord", "Submission"]


def __getattr__(name: str) -> Any:
    # Handed out on first use, so that naming a StudyRecord does not load a database toolkit.
    if name == "SqliteStore":
        return importlib.import_module("onefold.store.sqlite").SqliteStore
    raise AttributeError(f"module 'onefold.store' has no attribute {name!r}")
