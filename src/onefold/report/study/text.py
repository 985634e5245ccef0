"""A study report as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from onefold.report import phrases
from onefold.report.study.knobs import knob_section
from onefold.report.study.serving import explained, serving_parts
from onefold.report.study.shortlist import remarks, shortlist_of, shortlist_table
from onefold.report.study.summary import Summary
from onefold.report.study.tables import configuration, rungs_table, trials_table
from onefold.report.table import Cell, Column, ColumnKind, Table
from onefold.report.text_layout import joined, one_line, table_lines
from onefold.serving.recommendation import Recommendation
from onefold.vocabulary import quantities
from onefold.vocabulary.records import StudyState, Trial

SHOWN = 10  # trials per table
FAILURES_SHOWN = 10


def as_text(summary: Summary) -> str:
    """Return the report as plain text."""
    parts: list[Iterable[str]] = [_head(summary), _best(summary), _facts(summary)]
    if summary.recommendation:
        parts += _serving(summary, summary.recommendation)
    if len(summary.levels) + len(summary.forks) > 1:
        parts.append(table_lines(rungs_table(summary)))
    if summary.front:
        parts.append(_front_lines(summary, summary.front_by_goal[: 2 * SHOWN]))
    elif len(summary.ranking) > 1:
        parts.append([*table_lines(_short(summary, summary.ranking[:SHOWN], "Best trials")), *_remeasured(summary)])
    if (shortlist := shortlist_of(summary)) is not None:
        title = f"Compressed, on {one_line(shortlist.device)}: take {one_line(shortlist.why)}"
        parts.append(
            [
                *table_lines(replace(shortlist_table(shortlist), title=title)),
                *(f"  {one_line(remark)}" for remark in remarks(shortlist)),
            ]
        )
    if (knobs := knob_section(summary)) is not None and knobs.table.rows:
        parts.append(table_lines(knobs.table))
    if summary.failures:
        parts.append(_failures(summary))
    return joined(parts)


def front_text(summary: Summary) -> str:
    """Return the Pareto front as plain text: every trial of it, which one is handed over, and why."""
    if len(summary.objective.goals) == 1:
        return joined([_head(summary), _best(summary), ["The study has one goal, so it has no Pareto front."]])
    parts: list[Iterable[str]] = [_head(summary), _best(summary)]
    if summary.recommendation:
        parts.append(_why(summary.recommendation))
    parts.append(_front_lines(summary, summary.front_by_goal))
    return joined(parts)


def _front_lines(summary: Summary, trials: Sequence[Trial]) -> list[str]:
    if not summary.ranking:
        return ["No trial has a result yet, so there is no Pareto front."]
    if not summary.front:
        return ["No trial meets the requirements, so there is no Pareto front."]
    title = f"Pareto front: {quantities.count(len(summary.front), 'trial')}"
    return [*table_lines(_short(summary, trials, title)), *_remeasured(summary)]


def _remeasured(summary: Summary) -> Iterator[str]:
    if summary.remeasured:
        yield f"  {summary.remeasured}"


def _head(summary: Summary) -> Iterator[str]:
    study = summary.study
    yield f"{one_line(study.name)}: {study.state.value}" + (f", {one_line(study.reason)}" if study.reason else "")
    started = one_line(quantities.timestamp(study.created))
    yield f"{phrases.goals(summary.objective)} · workload {one_line(summary.workload)} · started {started}"


def _best(summary: Summary) -> Iterator[str]:
    best = summary.best
    if best is None:
        running = summary.study.state is StudyState.RUNNING
        yield "Best    none yet" if running else "Best    none: no trial finished a rung"
        return
    results = ", ".join(
        f"{metric} {summary.format(metric, best.metrics[metric])}" for metric in summary.objective.metrics
    )
    yield f"Best    trial {best.number}: {results}"
    if not summary.is_feasible(best):
        yield "        (no trial meets the requirements; this one is nearest)"
    if summary.test:
        test = ", ".join(f"{metric} {summary.format(metric, value)}" for metric, value in summary.test.items())
        yield f"        on test data: {test}"
    yield f"        {one_line(configuration(summary, best))}"
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


def _serving(summary: Summary, recommendation: Recommendation) -> Iterator[Iterable[str]]:
    yield _why(recommendation)
    for part in serving_parts(summary):
        reasons = [f"  {one_line(remark)}" for remark in part.on.reasons]
        if part.points.rows:
            yield [*table_lines(replace(part.points, title=f"How to serve it on {one_line(part.on.device)}")), *reasons]
        title = f"Alternatives to the top-1 trial on {one_line(part.on.device)}"
        yield [*table_lines(replace(part.alternatives, title=title)), f"  {part.remark}"]
    meanings = [f"{way}: {meaning}" for way, meaning in explained(summary)]
    if meanings:
        yield [f"≈ {meanings[0]}", *(f"  {meaning}" for meaning in meanings[1:])]


def _why(recommendation: Recommendation) -> list[str]:
    title = f"{'Serving' if recommendation.devices else 'Why'} trial {recommendation.trial}"
    return [title, *(f"  {one_line(remark)}" for remark in (*recommendation.shortfalls, *recommendation.reasons))]


def _short(summary: Summary, trials: Sequence[Trial], title: str) -> Table:
    """Return the trials without secondary metrics, with the configuration in one last column."""
    table = trials_table(summary, trials).with_columns(
        lambda column: (
            column.kind in (ColumnKind.TRIAL, ColumnKind.GOAL)
            or (column.kind is ColumnKind.COST and column.title != "memory")
        )
    )
    columns = (*table.columns, Column("configuration", ColumnKind.SETTING, numeric=False))
    rows = (
        replace(row, cells=(*row.cells, Cell(configuration(summary, trial)))) for row, trial in zip(table.rows, trials)
    )
    return replace(table, title=title, columns=columns, rows=tuple(rows))


def _failures(summary: Summary) -> Iterator[str]:
    yield f"Failures: {len(summary.failures)}"
    for failed in summary.failures[:FAILURES_SHOWN]:
        where = f"trial {failed.rung.trial}, level {failed.rung.grant.level}"
        yield f"  {where}: {failed.failure.kind.value}: {one_line(failed.failure.reason)}"
        if failed.failure.log:
            yield f"    traceback: {one_line(str(Path(summary.folder) / failed.failure.log))}"
    if len(summary.failures) > FAILURES_SHOWN:
        yield f"  and {len(summary.failures) - FAILURES_SHOWN} more"
