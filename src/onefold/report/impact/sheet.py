"""A table whose cells say more than their words: how they are set, and what is told when the pointer is on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from onefold.report.table import About, Column

Tone = Literal["", "better", "worse", "quiet", "some", "strong"]
Kind = Literal["", "baseline", "group", "member"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The words of a cell, how they are set, and what more there is to say."""

    words: str
    tone: Tone = ""
    more: str = ""


@dataclass(frozen=True, slots=True)
class SheetLine:
    """A row: its name, and a cell for each further column. A member stands below its group."""

    name: str
    cells: tuple[Cell, ...]
    kind: Kind = ""
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """Columns and lines of equal length; `heads` are titles over as many columns each, after the first."""

    name: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[SheetLine, ...]
    notes: tuple[str, ...] = ()
    heads: tuple[tuple[str, int], ...] = ()


def columns(first: str, others: Iterable[str], *, numeric: bool = True) -> tuple[Column, ...]:
    """The name of the lines, and what their cells hold."""
    return (Column(first, About.TRIAL, numeric=False), *(Column(title, About.TRIAL, numeric) for title in others))
