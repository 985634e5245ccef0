"""The headline numbers of a report."""

from __future__ import annotations

from dataclasses import dataclass

from onefold.report import phrases
from onefold.vocabulary.records import Energy


@dataclass(frozen=True, slots=True)
class Tile:
    """A headline number with a note; the badge marks a caveat that must not be overlooked."""

    title: str
    value: str
    note: str
    badge: str = ""
    accent: bool = False

    @classmethod
    def energy(cls, energy: Energy, note: str = "") -> Tile:
        """Return the tile of an energy with its source; an estimate is marked as one."""
        is_estimate = energy.joules is not None and energy.source == "modelled"
        source = "; ".join(filter(None, [phrases.energy_source(energy), note]))
        return cls("Energy", phrases.energy(energy), source, badge="estimate" if is_estimate else "")
