"""A compilation as plain text, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from onefold.report import phrases
from onefold.report.kernels import facts, tables
from onefold.report.table import Table
from onefold.report.text_layout import joined, labelled, table_lines, wrapped
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CompileResult

WIDTH = 110
SHOWN = 12  # operators
LABEL = 10  # columns of a label
INDENT = " " * LABEL


def as_text(compiled: CompileResult, width: int = WIDTH) -> str:
    """The compilation in lines, without colour or control characters; a table that is wider goes on below."""
    parts: list[Iterable[str]] = [_head(compiled, width), _facts(compiled, width)]
    sheets = (
        _runtimes(compiled),
        tables.phases_sheet(compiled),
        tables.fates_sheet(compiled),
        tables.operators_sheet(compiled, shown=SHOWN),
        tables.levels_sheet(compiled),
    )
    parts += [table_lines(sheet, width) for sheet in sheets if sheet.rows]
    return joined(parts)


def _head(compiled: CompileResult, width: int) -> Iterator[str]:
    yield from wrapped(f"Kernels of {compiled.model}: {facts.result(compiled)}", width)
    yield from wrapped(facts.aim(compiled), width)


def _facts(compiled: CompileResult, width: int) -> Iterator[str]:
    latencies = f"{facts.improvement(compiled)}, " if compiled.rounds else ""
    yield from labelled("Rounds", f"{latencies}{facts.progress(compiled)}", width, LABEL)
    yield from labelled("Stopped", compiled.why_stopped or quantities.NOTHING, width, LABEL)
    yield from labelled("Error", f"{facts.error(compiled)}, against the model's own answers", width, LABEL)
    yield from labelled("Library", compiled.folder or "none was kept", width, LABEL)
    spent = compiled.spent
    time = quantities.duration(spent.time_s) if spent.seconds else quantities.NOTHING
    yield from labelled("Time", f"{time}, {facts.time_note(compiled)}", width, LABEL)
    yield from labelled(
        "Energy", f"{phrases.energy(spent.energy)} ({phrases.energy_source(spent.energy)})", width, LABEL
    )
    yield from wrapped(facts.price(compiled), width, INDENT, INDENT)
    yield from labelled("Waste", facts.waste(compiled), width, LABEL)


def _runtimes(compiled: CompileResult) -> Table:
    """Notes may be long: here they stand below the table."""
    notes = tuple(f"{one.name}: {one.note}" for one in compiled.runtimes if one.note)
    return replace(tables.runtimes_sheet(compiled, noted=False), notes=notes)
