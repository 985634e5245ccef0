"""The outcomes of scenarios, one JSON line each, in a folder of files: one file for each process that writes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from claims.json_lines import append_line, read_lines


@dataclass
class ScenarioOutcome:
    """The disturbances of one scenario and the faults that they caused."""

    scenario: str
    seed: int
    kills: dict[str, int] = field(default_factory=dict)  # by process and moment
    stops: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    twice: int = 0
    different: int = 0  # studies with other decisions
    mixed: int = 0  # model folders that are not one generation
    orphans: int = 0  # processes and temporary folders that are left
    unfinished: int = 0  # studies and commands that did not end like undisturbed ones
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())

    @property
    def stopped(self) -> int:
        return sum(self.stops.values())

    def count(self, kind: str, process: str, moment: str) -> None:
        """Count a disturbance."""
        counts = self.stops if kind == "stop" else self.kills
        counts[f"{process} {moment}"] = counts.get(f"{process} {moment}", 0) + 1


class OutcomeFiles:
    """The outcomes in a folder: those of earlier and of parallel runs count too."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def outcomes(self) -> list[ScenarioOutcome]:
        """Return all outcomes; a line that was cut off by a kill does not count."""
        files = sorted(self._folder.glob("*.jsonl"))
        return [ScenarioOutcome(**line) for file in files for line in read_lines(file)]

    def save(self, outcome: ScenarioOutcome) -> None:
        """Append an outcome."""
        append_line(self._folder / f"part-{os.getpid()}.jsonl", asdict(outcome))


def totals(counts: list[Mapping[str, int]]) -> Counter[str]:
    """Return the sum of counts by name."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total
