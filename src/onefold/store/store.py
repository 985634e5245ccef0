"""The store protocol: the union of one protocol per domain."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from onefold.store.jobs import JobStore
from onefold.store.kernel_history import KernelHistory
from onefold.store.knob_history import KnobHistory
from onefold.store.retraining_history import RetrainingHistory
from onefold.store.serving_history import ServingHistory
from onefold.store.studies import StudyStore


class Store(StudyStore, ServingHistory, KnobHistory, KernelHistory, RetrainingHistory, JobStore, Protocol):
    """All durable records of Onefold.

    When a writing method returns, what it wrote survives a crash of this process and of the machine; inside
    `with store.transaction():` that is so when the block ends. A store is used by one thread; several processes may
    read while one writes. Problems with the database or the disk raise StoreError with what to do about them.
    """

    def transaction(self) -> AbstractContextManager[None]:
        """Make the writes of the block durable together, at its end, or not at all."""

    def close(self) -> None:
        """Close the store. Harmless when repeated."""
