"""What a study hands to a worker, and the seeds that make it repeatable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from onefold.vocabulary.knobs import KnobWish, Remembered
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Config, Grant


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
    objective: Objective  # which epoch is the best
    since: int = 0  # the lowest rung whose epochs compare with this one's: those on the same share of the data
    knobs: KnobWish = field(default_factory=KnobWish)
    remembered: tuple[Remembered, ...] = ()  # what is known about the knobs of other jobs

    @property
    def checkpoint(self) -> Path:
        """The file that holds where the trial stands after its latest epoch."""
        return checkpoint_of(Path(self.folder), self.trial)

    @property
    def best(self) -> Path:
        """The file that holds the weights of the best epoch of this rung."""
        return self.checkpoint.with_name(f"{self.trial:05d}-rung{self.rung}.pt")


def checkpoint_of(folder: Path, trial: int) -> Path:
    """Where a trial's checkpoint lives in a study's folder."""
    return folder / "trials" / f"{trial:05d}.pt"


def weights_file(folder: Path, trial: int, rung: int) -> Path | None:
    """The weights of the best epoch of a trial up to this rung; None for what has none, such as a function."""
    names = [f"{trial:05d}-rung{at}.pt" for at in range(rung, -1, -1)]
    return next((path for name in names if (path := folder / "trials" / name).exists()), None)


def files_of(folder: Path, trial: int) -> list[Path]:
    """All files of a trial: its checkpoint, and the weights of each rung's best epoch."""
    return sorted((folder / "trials").glob(f"{trial:05d}[.-]*"))


def seed_of(*parts: int) -> int:
    """One well-mixed seed out of several numbers."""
    digest = hashlib.sha256(",".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")
