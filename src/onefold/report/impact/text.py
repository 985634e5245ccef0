"""The report of an impact analysis as plain text, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from onefold.impact_analysis import Advice, Findings, advice
from onefold.report.impact import tables
from onefold.report.impact.facts import measured, subtitle, tiles
from onefold.report.impact.shares import pairs_table, singles_table
from onefold.report.table import Table
from onefold.report.text_layout import joined, one_line, table_lines, wrapped

WIDTH = 100
INDENT = "  "


def as_text(findings: Findings, width: int = WIDTH) -> str:
    """Return the report without color or control characters; wide tables continue below."""
    parts: list[Iterable[str]] = [_head(findings, width)]
    parts += [_advice(part, width) for part in advice(findings)]
    for table in _tables(findings):
        if table.rows:
            parts.append(table_lines(table, width))
    parts.append(_measured(findings, width))
    return joined(parts)


def _tables(findings: Findings) -> Iterator[Table]:
    for form in findings.forms:
        table = tables.effects(findings, form)
        yield replace(table, title=f"Effects of holding hyperparameters fixed: {table.title.lower()}")
        table = tables.unpaired(findings, form)
        yield replace(table, title=f"Effects of holding hyperparameters fixed: {table.title.lower()}")
    yield tables.spread(findings)
    if findings.changes:
        yield tables.changes(findings)
    yield tables.deviations(findings)
    if findings.pairs:
        yield tables.pairs(findings)
    for form in findings.forms:
        table = tables.correlated(findings, form)
        yield replace(table, title=f"Rank correlations: {table.title.lower()}")
    for form in findings.forms:
        yield singles_table(findings, form)
        yield pairs_table(findings, form)
    yield tables.best_models(findings)
    yield tables.failures(findings)


def _head(findings: Findings, width: int) -> Iterator[str]:
    yield f"Impact analysis: {one_line(findings.evidence.workload)}"
    yield one_line(subtitle(findings.evidence))
    for tile in tiles(findings):
        text = f"{tile.title}: {tile.value}" + (f" ({tile.badge})" if tile.badge else "") + f", {tile.note}"
        yield from wrapped(text, width, others=INDENT)


def _advice(part: Advice, width: int) -> Iterator[str]:
    yield part.question
    for answer in part.answers:
        yield from wrapped(answer, width, "  - ", "    ")


def _measured(findings: Findings, width: int) -> Iterator[str]:
    yield "How properties were measured"
    for name, value in measured(findings):
        yield from wrapped(f"{name}: {value}", width, "  ", "    ")
