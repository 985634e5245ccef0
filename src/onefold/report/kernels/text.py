"""The text report of a compilation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from onefold.report import phrases
from onefold.report.kernels import facts, tables
from onefold.report.table import Table
from onefold.report.text_layout import joined, labeled, table_lines, wrapped
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CompileResult

WIDTH = 110
MAX_OPERATORS = 12
LABEL = 10  # columns of a label
INDENT = " " * LABEL


def as_text(compiled: CompileResult, width: int = WIDTH) -> str:
    """Return the report without color or control characters; wider tables are split."""
    parts: list[Iterable[str]] = [_head(compiled, width), _facts(compiled, width)]
    report_tables = (
        _runtimes(compiled),
        tables.phases_table(compiled),
        tables.fates_table(compiled),
        tables.operators_table(compiled, shown=MAX_OPERATORS),
        tables.levels_table(compiled),
    )
    parts += [table_lines(table, width) for table in report_tables if table.rows]
    return joined(parts)


def _head(compiled: CompileResult, width: int) -> Iterator[str]:
    yield from wrapped(f"Kernels of {compiled.model}: {facts.result(compiled)}", width)
    yield from wrapped(facts.setup(compiled), width)


def _facts(compiled: CompileResult, width: int) -> Iterator[str]:
    latencies = f"{facts.improvement(compiled)}, " if compiled.rounds else ""
    yield from labeled("Rounds", f"{latencies}{facts.progress(compiled)}", width, LABEL)
    yield from labeled("Stopped", compiled.why_stopped or quantities.MISSING, width, LABEL)
    yield from labeled("Error", f"{facts.error(compiled)}, against the model's own outputs", width, LABEL)
    yield from labeled("Library", compiled.folder or "not saved", width, LABEL)
    spent = compiled.spent
    time = quantities.duration(spent.time_s) if spent.seconds else quantities.MISSING
    yield from labeled("Time", f"{time}, {facts.time_note(compiled)}", width, LABEL)
    yield from labeled(
        "Energy", f"{phrases.energy(spent.energy)} ({phrases.energy_source(spent.energy)})", width, LABEL
    )
    yield from wrapped(facts.price(compiled), width, INDENT, INDENT)
    yield from labeled("Waste", facts.waste(compiled), width, LABEL)


def _runtimes(compiled: CompileResult) -> Table:
    """Return the runtimes with their notes below the table, since notes may be long."""
    notes = tuple(f"{runtime.name}: {runtime.note}" for runtime in compiled.runtimes if runtime.note)
    return replace(tables.runtimes_table(compiled, noted=False), notes=notes)
