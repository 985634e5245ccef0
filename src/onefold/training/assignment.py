"""What a study hands to a worker, and the seeds that make it repeatable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from onefold.records import Config, Grant


@dataclass(frozen=True, slots=True)
class Assignment:
    """One visit to be made: which trial, how far, and where its checkpoint lives."""

    trial: int
    rung: int
    config: Config
    grant: Grant
    seed: int
    threads: int
    most_epochs: int  # what the full budget grants; schedules span it
    folder: str

    @property
    def checkpoint(self) -> Path:
        """The file that holds where the trial stands after its latest epoch."""
        return checkpoint_of(Path(self.folder), self.trial)


def checkpoint_of(folder: Path, trial: int) -> Path:
    """Where a trial's checkpoint lives in a study's folder."""
    return folder / "trials" / f"{trial:05d}.pt"


def seed_of(*parts: int) -> int:
    """One well-mixed seed out of several numbers."""
    digest = hashlib.sha256(",".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")
