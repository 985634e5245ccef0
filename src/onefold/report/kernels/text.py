"""A compilation as plain text, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace

from onefold.report import phrases
from onefold.report.impact.sheet import Sheet
from onefold.report.impact.text import laid
from onefold.report.kernels import facts, tables
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import CompileResult

WIDTH = 110
SHOWN = 12  # operators
INDENT = " " * 10


def text(compiled: CompileResult, width: int = WIDTH) -> str:
    """The compilation in lines, without colour or control characters; a table that is wider goes on below."""
    parts: list[Iterable[str]] = [_head(compiled, width), _facts(compiled, width)]
    sheets = (
        _runtimes(compiled),
        tables.phases_sheet(compiled),
        tables.fates_sheet(compiled),
        tables.operators_sheet(compiled, shown=SHOWN),
        tables.levels_sheet(compiled),
    )
    parts += [laid(sheet, width) for sheet in sheets if sheet.lines]
    lines = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in lines) + "\n"


def _head(compiled: CompileResult, width: int) -> Iterator[str]:
    yield from _wrapped(f"Kernels of {compiled.model}: {facts.result(compiled)}", width)
    yield from _wrapped(facts.aim(compiled), width)


def _facts(compiled: CompileResult, width: int) -> Iterator[str]:
    latencies = f"{facts.improvement(compiled)}, " if compiled.rounds else ""
    yield from _named("Rounds", f"{latencies}{facts.progress(compiled)}", width)
    yield from _named("Stopped", compiled.why_stopped or quantities.NOTHING, width)
    yield from _named("Error", f"{facts.error(compiled)}, against the model's own answers", width)
    yield from _named("Library", compiled.folder or "none was kept", width)
    spent = compiled.spent
    time = quantities.duration(spent.time_s) if spent.seconds else quantities.NOTHING
    yield from _named("Time", f"{time}, {facts.time_note(compiled)}", width)
    yield from _named("Energy", f"{phrases.energy(spent.energy)} ({phrases.energy_source(spent.energy)})", width)
    yield from _wrapped(facts.price(compiled), width, INDENT, INDENT)
    yield from _named("Waste", facts.waste(compiled), width)


def _runtimes(compiled: CompileResult) -> Sheet:
    """Notes may be long: here they stand below the table."""
    notes = tuple(f"{one.name}: {one.note}" for one in compiled.runtimes if one.note)
    return replace(tables.runtimes_sheet(compiled, noted=False), notes=notes)


def _named(name: str, said: str, width: int) -> list[str]:
    return _wrapped(said, width, name.ljust(len(INDENT)), INDENT)


def _wrapped(said: str, width: int, first: str = "", others: str = "") -> list[str]:
    line = " ".join(said.split())
    return textwrap.wrap(line, max(width, 40), initial_indent=first, subsequent_indent=others)
