"""The headline numbers of a report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """A headline number with a note; the badge marks a caveat that must not be overlooked."""

    title: str
    value: str
    note: str
    badge: str = ""
    accent: bool = False
