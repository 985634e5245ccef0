"""What a study of impact found as plain text, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from onefold.impact_analysis import Advice, Findings, advice
from onefold.report.impact import tables
from onefold.report.impact.facts import aim, measured, tiles
from onefold.report.impact.shares import pairs_table, singles_table
from onefold.report.impact.sheet import Sheet, SheetLine

WIDTH = 100
GAP = "  "


def as_text(findings: Findings, width: int = WIDTH) -> str:
    """The findings in lines, without colour or control characters; tables that are wider go on below."""
    parts: list[Iterable[str]] = [_head(findings, width)]
    parts += [_advice(part, width) for part in advice(findings)]
    for sheet in _sheets(findings):
        if sheet.lines:
            parts.append(laid(sheet, width))
    parts.append(_measured(findings, width))
    text = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text) + "\n"


def _sheets(findings: Findings) -> Iterator[Sheet]:
    for form in findings.forms:
        found = tables.effects(findings, form)
        yield Sheet(
            found.name,
            f"What holding something fixed changes: {found.title.lower()}",
            found.columns,
            found.lines,
            found.notes,
            found.heads,
        )
    yield tables.spread(findings)
    if findings.changes:
        yield tables.changes(findings)
    yield tables.deviations(findings)
    if findings.pairs:
        yield tables.pairs(findings)
    for form in findings.forms:
        found = tables.correlated(findings, form)
        yield Sheet(found.name, f"Rank correlations: {found.title.lower()}", found.columns, found.lines, found.notes)
    for form in findings.forms:
        yield singles_table(findings, form)
        yield pairs_table(findings, form)
    yield tables.best_models(findings)
    yield tables.failures(findings)


def _head(findings: Findings, width: int) -> Iterator[str]:
    yield f"What tuning changes: {_line(findings.evidence.workload)}"
    yield _line(aim(findings.evidence))
    for tile in tiles(findings):
        said = f"{tile.title}: {tile.value}" + (f" ({tile.badge})" if tile.badge else "") + f", {tile.note}"
        yield from _wrapped(said, width)


def _advice(part: Advice, width: int) -> Iterator[str]:
    yield part.question
    for said in part.answers:
        yield from _wrapped(said, width, "  - ", "    ")


def _measured(findings: Findings, width: int) -> Iterator[str]:
    yield "How things were measured"
    for name, value in measured(findings):
        yield from _wrapped(f"{name}: {value}", width, "  ", "    ")


def laid(sheet: Sheet, width: int) -> Iterator[str]:
    """A table in lines, as many groups of columns beside each other as there is room for."""
    yield sheet.title
    names = [sheet.columns[0].title, *(_named(line) for line in sheet.lines)]
    first = max(map(len, names))
    blocks = list(_blocks(sheet))
    taken = 0
    while taken < len(blocks):
        line_length, start = len(GAP) + first, taken
        while taken < len(blocks) and (taken == start or line_length + len(GAP) + len(blocks[taken][0]) <= width):
            line_length += len(GAP) + len(blocks[taken][0])
            taken += 1
        if start:
            yield ""
        heads = ["", *names] if sheet.heads else names
        for place, name in enumerate(heads):
            yield GAP.join(["", name.ljust(first), *(block[place] for block in blocks[start:taken])])
    for note in sheet.notes:
        yield from _wrapped(note, width, GAP, GAP)


def _blocks(sheet: Sheet) -> Iterator[list[str]]:
    """The columns below each head, line by line and padded to one width."""
    place = 1
    for head, span in sheet.heads or [("", 1)] * (len(sheet.columns) - 1):
        places = range(place, place + span)
        place += span
        lines = [[sheet.columns[p].title for p in places]]
        lines += [[_line(line.cells[p - 1].words) for p in places] for line in sheet.lines]
        widths = [max(len(cells[i]) for cells in lines) for i in range(span)]
        widths[-1] = max(widths[-1], len(head) - sum(widths[:-1]) - len(GAP) * (span - 1))
        rows = [
            GAP.join(
                cell.rjust(wide) if sheet.columns[p].numeric else cell.ljust(wide)
                for cell, wide, p in zip(cells, widths, places)
            )
            for cells in lines
        ]
        yield [head.center(len(rows[0])), *rows] if sheet.heads else rows


def _named(line: SheetLine) -> str:
    return f"  {_line(line.name)}" if line.kind == "member" else _line(line.name)


def _wrapped(said: str, width: int, first: str = "", others: str = "  ") -> list[str]:
    return textwrap.wrap(_line(said), max(width, 40), initial_indent=first, subsequent_indent=others)


def _line(given: str) -> str:
    return " ".join(given.split())
