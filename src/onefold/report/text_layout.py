"""Tables and paragraphs as plain text for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from onefold.report.table import Row, Table

GAP = "  "
NARROWEST = 40  # columns; narrower text is not readable


def joined(parts: Iterable[Iterable[str]]) -> str:
    """Join parts, each given as lines, with blank lines; control characters become spaces."""
    text = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text) + "\n"


def one_line(text: str) -> str:
    """Return the text with every run of white space replaced by one space."""
    return " ".join(text.split())


def wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Wrap a paragraph; the first line is indented by `first`, all others by `others`."""
    return textwrap.wrap(one_line(text), max(width, NARROWEST), initial_indent=first, subsequent_indent=others)


def labeled(label: str, text: str, width: int, indent: int) -> list[str]:
    """Wrap a paragraph beside its label, which takes up `indent` columns."""
    return wrapped(text, width, label.ljust(indent), " " * indent)


def table_lines(table: Table, width: int | None = None) -> Iterator[str]:
    """Lay out a table below its title.

    Args:
        table: The table.
        width: Columns of the terminal; groups of columns that do not fit continue below. None for no limit.
    """
    yield table.title
    names = [table.columns[0].title, *(_row_name(row) for row in table.rows)]
    name_width = max(map(len, names))
    names = [name.rjust(name_width) if table.columns[0].numeric else name.ljust(name_width) for name in names]
    blocks = list(_blocks(table))
    taken = 0
    while taken < len(blocks):
        line_length, start = len(GAP) + name_width, taken
        while taken < len(blocks) and (
            width is None or taken == start or line_length + len(GAP) + len(blocks[taken][0]) <= width
        ):
            line_length += len(GAP) + len(blocks[taken][0])
            taken += 1
        if start:
            yield ""
        for index, name in enumerate([" " * name_width, *names] if table.groups else names):
            yield GAP.join(["", name, *(block[index] for block in blocks[start:taken])]).rstrip()
    for note in table.notes:
        yield from [f"{GAP}{one_line(note)}"] if width is None else wrapped(note, width, GAP, GAP)


def _blocks(table: Table) -> Iterator[list[str]]:
    """Yield the lines of each group of columns, padded to one width."""
    start = 1
    for title, span in table.groups or [("", 1)] * (len(table.columns) - 1):
        columns = table.columns[start : start + span]
        lines = [[column.title for column in columns]]
        lines += [[one_line(cell.text) for cell in row.cells[start : start + span]] for row in table.rows]
        start += span
        widths = [max(len(cells[i]) for cells in lines) for i in range(span)]
        widths[-1] = max(widths[-1], len(title) - sum(widths[:-1]) - len(GAP) * (span - 1))
        rows = [
            GAP.join(
                cell.rjust(width) if column.numeric else cell.ljust(width)
                for cell, width, column in zip(cells, widths, columns)
            )
            for cells in lines
        ]
        yield [title.center(len(rows[0])), *rows] if table.groups else rows


def _row_name(row: Row) -> str:
    return f"  {one_line(row.name)}" if row.kind == "member" else one_line(row.name)
