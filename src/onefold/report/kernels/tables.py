"""The tables of a compilation, for the text and the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from onefold.report import phrases
from onefold.report.kernels import facts
from onefold.report.kernels.costs import by_time, fate_costs, share_of_model
from onefold.report.plots.svg import shortened
from onefold.report.table import Cell, Row, Table, columns
from onefold.vocabulary import quantities
from onefold.vocabulary.kernels import PHASES, CompileResult, OperatorState
from onefold.vocabulary.records import Energy

MAX_OPERATORS = 40
NAME_LENGTH = 40
PHASE_NOTES = {
    "search": "proposing candidates",
    "build": "compiling them",
    "run": "timing them",
    "update": "updating the cost model and the filter",
    "whole": "compiling and timing the whole model",
}
ALL = "all"


def models_table(results: Sequence[CompileResult]) -> Table:
    """Return a row for each model."""
    rows = []
    for compiled in results:
        chosen = facts.recommended(compiled)
        cells = (
            quantities.MISSING if chosen is None else chosen.name,
            quantities.MISSING if chosen is None else quantities.duration(chosen.latency_s),
            facts.improvement(compiled),
            quantities.duration(compiled.spent.time_s) if compiled.spent.seconds else quantities.MISSING,
            phrases.energy(compiled.spent.energy),
            compiled.device,
        )
        rows.append(Row.of(compiled.model, *cells))
    titles = ("recommended", "latency", "first to last round", "time", "energy", "device")
    notes = (
        f"Energy: {'; '.join(dict.fromkeys(phrases.energy_source(compiled.spent.energy) for compiled in results))}.",
    )
    return Table("models", "Models", columns("model", titles, "recommended", "device"), tuple(rows), notes)


def runtimes_table(compiled: CompileResult, *, noted: bool = True) -> Table:
    """Return the runtimes, fastest first; the last column has the recommendation and the notes."""
    fastest = min((runtime.latency_s for runtime in compiled.runtimes), default=0.0)
    rows = []
    for runtime in compiled.runtimes:
        ratio = runtime.latency_s / fastest if fastest > 0 else math.nan
        why = facts.FASTEST if runtime.latency_s <= fastest else facts.SLOWER
        remarks = [f"recommended: {why}"] if runtime.name == compiled.recommended else []
        remarks += [runtime.note] if noted and runtime.note else []
        cells = (
            Cell(quantities.duration(runtime.latency_s)),
            Cell(quantities.factor(ratio) if math.isfinite(ratio) else quantities.MISSING),
            Cell(str(runtime.threads)),
            Cell("; ".join(remarks)),
        )
        rows.append(Row.of(runtime.name, *cells))
    titles = ("latency", "times the fastest", "threads", "note")
    return Table("runtimes", "Runtimes, fastest first", columns("runtime", titles, "note"), tuple(rows))


def phases_table(compiled: CompileResult) -> Table:
    """Return time and energy by phase."""
    spent = compiled.spent
    known = [name for name in PHASES if name in spent.seconds or name in spent.joules]
    rows = []
    for name in known:
        time_s, joules = spent.seconds.get(name), spent.joules.get(name)
        cells = (
            quantities.duration(time_s),
            _share(time_s, spent.time_s),
            phrases.energy(Energy(joules, spent.source)),
            _share(joules, spent.energy.joules) if spent.source != "unavailable" else quantities.MISSING,
            PHASE_NOTES[name],
        )
        rows.append(Row.of(name, *cells))
    if rows:
        total = (quantities.duration(spent.time_s), "", phrases.energy(spent.energy), "", "")
        rows.append(Row.of(ALL, *total, kind="baseline"))
    titles = ("time", "share of time", "energy", "share of energy", "description")
    notes = (f"Energy: {phrases.energy_source(spent.energy)}.",)
    return Table("phases", "Cost by phase", columns("phase", titles, "description"), tuple(rows), notes)


def fates_table(compiled: CompileResult) -> Table:
    """Return the cost of building and timing candidates by fate."""
    source = compiled.spent.source
    costs = fate_costs(compiled.histories)
    rows = []
    for cost in costs:
        cells = (
            f"{cost.candidates:,}",
            quantities.duration(cost.time_s),
            quantities.share(cost.time_share),
            phrases.energy(Energy(cost.joules, source)),
            quantities.MISSING
            if cost.energy_share is None or source == "unavailable"
            else quantities.share(cost.energy_share),
        )
        rows.append(Row.of(cost.fate.value, *cells))
    if not any(cost.candidates for cost in costs):
        rows = []
    titles = ("candidates", "time", "share of time", "energy", "share of energy")
    known = facts.recalled(compiled)
    notes = ["Building and timing. Cold: slower than the LOESS fit at that point of the search."]
    if known:
        notes.append(f"Without {quantities.count(known, 'candidate')} recalled from earlier compilations.")
    title = "Cost by fate of candidates"
    return Table("fates", title, columns("fate", titles), tuple(rows), (" ".join(notes),))


def operators_table(
    compiled: CompileResult, numbers: Mapping[str, int] | None = None, shown: int = MAX_OPERATORS
) -> Table:
    """Return the operators by their share of the model's latency; `numbers` link them to marks in plots."""
    states = by_time(compiled)
    rows = []
    for state in states[:shown]:
        number = None if numbers is None else numbers.get(state.operator.key)
        rows.append(Row.of(shortened(state.operator.name, NAME_LENGTH), *_operator(compiled, state), trial=number))
    notes = [
        "Weight: how often the model runs it. Operators are timed separately, so their sum differs from the latency "
        "of the whole model."
    ]
    if len(states) > shown:
        notes.append(f"{shown} of {len(states)} operators. The JSON report has all of them.")
    if states:
        rows += _totals(compiled, states)
    titles = ("kind", "weight", "best run", "time", "share", "tried", "filtered", "failed", "state")
    head = columns("operator", titles, "kind", "state")
    return Table("operators", "Operators by share of the model's latency", head, tuple(rows), (" ".join(notes),))


def levels_table(compiled: CompileResult) -> Table:
    """Return the graph optimization levels, if they were compared."""
    source = compiled.spent.source
    rows = []
    for level in compiled.levels:
        cells = (
            f"{level.operators:,}",
            quantities.duration(level.latency_s),
            quantities.duration(level.compile_s),
            phrases.energy(Energy(level.joules, source)),
            "used" if level.number == compiled.level else "",
        )
        rows.append(Row.of(str(level.number), *cells))
    titles = ("operators", "latency before tuning", "compile time", "energy of compiling", "")
    known = next((level.joules for level in compiled.levels if level.joules is not None), None)
    notes = (f"Energy: {phrases.energy_source(Energy(known, source))}.",)
    return Table("levels", "Graph optimization levels", columns("level", titles, ""), tuple(rows), notes)


def _operator(compiled: CompileResult, state: OperatorState) -> Iterator[str]:
    yield state.operator.kind
    yield str(state.operator.weight)
    yield quantities.duration(state.best_s)
    yield from _timed(compiled, None if state.best_s is None else state.time_s)
    yield from (f"{count:,}" for count in (state.tried, state.filtered, state.failed))
    yield "suspended" if state.suspended else "tuning"


def _totals(compiled: CompileResult, states: Sequence[OperatorState]) -> Iterator[Row]:
    """Yield the sum of all operators and the whole model."""
    known = [state.time_s for state in states if state.best_s is not None]
    weight = sum(state.operator.weight for state in states)
    counts = [sum(column) for column in zip(*((state.tried, state.filtered, state.failed) for state in states))]
    every = ("", f"{weight:,}", "", *_timed(compiled, sum(known) if known else None), *(f"{n:,}" for n in counts), "")
    yield Row.of("all operators", *every, kind="baseline")
    whole_model = ("", "", "", *_timed(compiled, compiled.rounds[-1].latency_s), "", "", "", "")
    yield Row.of("whole model", *whole_model, kind="baseline")


def _timed(compiled: CompileResult, time_s: float | None) -> tuple[str, str]:
    """Return a time and its share of the model's latency."""
    share = None if time_s is None else share_of_model(compiled, time_s)
    time = quantities.duration(time_s)
    return time, quantities.share(share)


def _share(value: float | None, total: float | None) -> str:
    return quantities.MISSING if value is None or not total else quantities.share(value / total)
