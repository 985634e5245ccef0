"""The store protocol of knobs: settings by epoch, and the best settings of each job."""

from __future__ import annotations

from typing import Protocol

from onefold.vocabulary.knobs import KnobMemory, KnobRecord


class KnobHistory(Protocol):
    """Knob settings of epochs, and the best settings of jobs, which all studies share."""

    def save_knob_record(self, study: str, record: KnobRecord) -> None:
        """Add the knobs of an epoch and their effect; a record that exists is left unchanged."""

    def knob_records(self, study: str) -> list[KnobRecord]:
        """Return a study's knob records by trial, rung and epoch."""

    def save_knob_memory(self, memory: KnobMemory) -> None:
        """Add or replace the best knobs of a job on a machine."""

    def knob_memories(self) -> list[KnobMemory]:
        """Return the best knobs of all jobs, by machine."""
