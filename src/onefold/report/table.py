"""The table model of all reports: every table is built once, cell by cell, and laid out as text or HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

Tone = Literal["", "better", "worse", "quiet", "some", "strong"]
RowKind = Literal["", "baseline", "group", "member"]


class ColumnKind(Enum):
    """What a column shows."""

    TRIAL = "trial"
    GOAL = "goal"
    METRIC = "metric"
    SETTING = "setting"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Column:
    """The title of a column, what it shows and whether it is aligned as numbers."""

    title: str
    kind: ColumnKind = ColumnKind.TRIAL
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of a cell, its emphasis, and a tooltip for the HTML page."""

    text: str
    tone: Tone = ""
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell per column, the first of which names the row.

    A row about a trial carries its number; a row of kind "member" is indented below its "group".
    """

    cells: tuple[Cell, ...]
    kind: RowKind = ""
    trial: int | None = None

    @classmethod
    def of(cls, *cells: str | Cell, kind: RowKind = "", trial: int | None = None) -> Row:
        """Build a row from cells, or from their texts."""
        return cls(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells), kind, trial)

    @property
    def name(self) -> str:
        """Return the text of the first cell."""
        return self.cells[0].text

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts of all cells."""
        return tuple(cell.text for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of equal length, notes below them, and titles over groups of columns.

    `groups` are (title, number of columns), starting with the second column; empty for none.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()

    def with_columns(self, is_wanted: Callable[[Column], bool]) -> Table:
        """Return the table with only the columns that are wanted. Group titles are dropped."""
        kept = [index for index, column in enumerate(self.columns) if is_wanted(column)]
        rows = tuple(replace(row, cells=tuple(row.cells[index] for index in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[index] for index in kept), rows=rows, groups=())

    def ungrouped(self) -> Table:
        """Return the table with the title of each group written before the titles of its columns."""
        titles = [""] + [title for title, span in self.groups for _ in range(span)]
        titles += [""] * (len(self.columns) - len(titles))
        columns = (
            replace(column, title=f"{title} {column.title}".strip()) for title, column in zip(titles, self.columns)
        )
        return replace(self, columns=tuple(columns), groups=())

    def transposed(self) -> Table:
        """Return the table with its first column as the header, for narrow places."""
        titles = (self.columns[0].title, *(row.name for row in self.rows))
        columns = (
            Column(title, ColumnKind.COST if index else ColumnKind.TRIAL, index > 0)
            for index, title in enumerate(titles)
        )
        rows = (
            Row.of(column.title, *(row.cells[index] for row in self.rows))
            for index, column in enumerate(self.columns)
            if index
        )
        return replace(self, columns=tuple(columns), rows=tuple(rows), groups=())


def columns(first: str, others: Iterable[str], *texts: str, numeric: bool = True) -> tuple[Column, ...]:
    """Return a column of row names and numeric columns; those titled as in `texts` hold text."""
    named = (Column(title, numeric=numeric and title not in texts) for title in others)
    return (Column(first, numeric=False), *named)
