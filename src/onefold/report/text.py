"""A report as plain text, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onefold.report import phrases
from onefold.report.knobs import turned_knobs
from onefold.report.serving import explained, serving_parts
from onefold.report.shortlist import remarks, shortlist_of, shortlist_table
from onefold.report.summary import Summary
from onefold.report.table import About, Column, Row, Table, levels_table, settings_words, trials_table
from onefold.serving.recommendation import Recommendation
from onefold.vocabulary import quantities
from onefold.vocabulary.records import StudyState, Trial

SHOWN = 10  # trials in the table
FAILURES_SHOWN = 10


def as_text(summary: Summary) -> str:
    """The report in lines, without colour or control characters."""
    parts: list[Iterable[str]] = [_head(summary), _best(summary), _facts(summary)]
    if summary.recommendation:
        parts += _serving(summary, summary.recommendation)
    if len(summary.levels) > 1:
        parts.append(_titled("Rungs", levels_table(summary)))
    if summary.front:
        title = f"Pareto front: {quantities.count(len(summary.front), 'trial')}"
        parts.append(_titled(title, _short(summary, _front(summary))))
    elif len(summary.ranking) > 1:
        parts.append(_titled("Best trials", _short(summary, summary.ranking[:SHOWN])))
    if (shortlist := shortlist_of(summary)) is not None:
        title = f"Compressed, on {_line(shortlist.device)}: take {_line(shortlist.why)}"
        parts.append(
            [*_titled(title, shortlist_table(shortlist)), *(f"  {_line(said)}" for said in remarks(shortlist))]
        )
    if (knobs := turned_knobs(summary)) is not None and knobs.table.rows:
        parts.append(_titled("Knobs", knobs.table))
    if summary.failures:
        parts.append(_failures(summary))
    text = "\n\n".join("\n".join(part) for part in parts)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text) + "\n"


def _front(summary: Summary) -> list[Trial]:
    goal = summary.objective.goals[0]
    return sorted(summary.front, key=lambda trial: goal.loss(trial.metrics[goal.metric]))[: 2 * SHOWN]


def _head(summary: Summary) -> Iterator[str]:
    study = summary.study
    yield f"{_line(study.name)}: {study.state.value}" + (f", {_line(study.reason)}" if study.reason else "")
    started = _line(quantities.timestamp(study.created))
    yield f"{phrases.goals(summary.objective)} · workload {_line(summary.workload)} · started {started}"


def _best(summary: Summary) -> Iterator[str]:
    best = summary.best
    if best is None:
        running = summary.study.state is StudyState.RUNNING
        yield "Best    none yet" if running else "Best    none: no trial finished a rung"
        return
    results = ", ".join(
        f"{metric} {summary.written(metric, best.metrics[metric])}" for metric in summary.objective.metrics
    )
    yield f"Best    trial {best.number}: {results}"
    if not summary.keeps(best):
        yield "        (no trial keeps the requirements; this one comes nearest)"
    if summary.test:
        test = ", ".join(f"{metric} {summary.written(metric, value)}" for metric, value in summary.test.items())
        yield f"        on the test data: {test}"
    yield f"        {_line(settings_words(summary, best))}"
    yield f"        level {best.level}, {quantities.count(summary.epochs_of(best), 'epoch')}"


def _facts(summary: Summary) -> Iterator[str]:
    states = " · ".join(f"{count} {state.value}" for state, count in summary.counts.items()) or "none"
    yield f"Trials  {len(summary.trials)}: {states}" if summary.trials else "Trials  none"
    cost = summary.cost
    yield (
        f"Time    {quantities.duration(summary.study.elapsed_s)} elapsed · {quantities.duration(cost.time_s)} in rungs"
        + (f" · {quantities.duration(cost.cpu_s)} of CPU")
    )
    yield f"Energy  {phrases.energy(cost.energy)} ({phrases.energy_source(cost.energy)})"
    if cost.memory_bytes is not None:
        yield f"Memory  {quantities.size(cost.memory_bytes)} at the peak of one trial"


def _serving(summary: Summary, found: Recommendation) -> Iterator[Iterable[str]]:
    yield [f"Serving trial {found.trial}", *(f"  {_line(said)}" for said in (*found.shortfalls, *found.reasons))]
    for part in serving_parts(summary):
        reasons = [f"  {_line(said)}" for said in part.on.reasons]
        if part.points.rows:
            yield [*_titled(f"How to serve it on {_line(part.on.device)}", part.points), *reasons]
        alternatives = _titled(f"Do not ship the top-1 unseen: {_line(part.on.device)}", part.alternatives)
        yield [*alternatives, f"  {part.remark}"]
    meanings = [f"{way}: {meaning}" for way, meaning in explained(summary)]
    if meanings:
        yield [f"≈ {meanings[0]}", *(f"  {meaning}" for meaning in meanings[1:])]


def _short(summary: Summary, trials: Sequence[Trial]) -> Table:
    """The trials without their lesser metrics, and with the settings in one column at the end."""
    whole = trials_table(summary, trials)
    kept = [
        place
        for place, column in enumerate(whole.columns)
        if column.about in (About.TRIAL, About.GOAL) or (column.about is About.COST and column.title != "memory")
    ]
    columns = (*(whole.columns[place] for place in kept), Column("configuration", About.SETTING, numeric=False))
    rows = (
        Row((*(row.cells[place] for place in kept), settings_words(summary, trial)), row.trial)
        for row, trial in zip(whole.rows, trials)
    )
    return Table(columns, tuple(rows))


def _titled(title: str, table: Table) -> Iterator[str]:
    yield title
    written = [tuple(column.title for column in table.columns), *(row.cells for row in table.rows)]
    lines = [tuple(map(_line, cells)) for cells in written]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, width, column in zip(line, widths, table.columns)
        )
        yield "  " + "  ".join(cells).rstrip()


def _failures(summary: Summary) -> Iterator[str]:
    yield f"Failures: {len(summary.failures)}"
    for failed in summary.failures[:FAILURES_SHOWN]:
        where = f"trial {failed.rung.trial}, level {failed.rung.grant.level}"
        yield f"  {where}: {failed.failure.kind.value}: {_line(failed.failure.reason)}"
    if len(summary.failures) > FAILURES_SHOWN:
        yield f"  and {len(summary.failures) - FAILURES_SHOWN} more"


def _line(given: str) -> str:
    return " ".join(given.split())
