"""A study report as one standalone HTML page, readable without its script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from onefold.report import phrases
from onefold.report.html_page import render_page
from onefold.report.plots import curves, ladder, parallel, progress, tradeoffs
from onefold.report.study.knobs import knob_section
from onefold.report.study.serving import explained, serving_parts, trade_offs
from onefold.report.study.shortlist import remarks, shortlist_of, shortlist_table
from onefold.report.study.summary import TRAINING_COSTS, Summary
from onefold.report.study.tables import VARIANT, rungs_table, trials_table
from onefold.report.table import Column, ColumnKind, Row, Table
from onefold.report.tile import Tile
from onefold.vocabulary import quantities
from onefold.vocabulary.records import StudyState, Trial
from onefold.vocabulary.serving import is_serving_metric
from onefold.vocabulary.space import Choice, Parameter

SHOWN = 25  # trials in a table
FAILURES_SHOWN = 50
# Keys of the spec that other parts of the page show.
SHOWN_ELSEWHERE = ("workload", "objective", "space", "first", "arms")


def as_html(summary: Summary) -> str:
    """Return the page."""
    best, shortlist = summary.best, shortlist_of(summary)
    return render_page(
        "study/page.html",
        settings=lambda config: _json(dict(config)),
        summary=summary,
        tiles=list(_tiles(summary)),
        best_title=_best_title(summary),
        best_note=_best_note(summary),
        config=_json(dict(best.config)) if best else "",
        reached=list(_reached(summary, best)) if best else [],
        tradeoffs=tradeoffs(replace(summary, ranking=summary.compared)),
        front=_front(summary),
        serving=serving_parts(summary),
        ways=explained(summary),
        trade_offs=trade_offs(summary),
        plots=[progress(summary), curves(summary), parallel(summary)],
        ladder=ladder(summary),
        knobs=knob_section(summary),
        shortlist=shortlist,
        variants=shortlist_table(shortlist) if shortlist else None,
        remarks=remarks(shortlist) if shortlist else (),
        levels=rungs_table(summary),
        trials=_trials(summary),
        failures=summary.failures[:FAILURES_SHOWN],
        measured=list(_measured(summary)),
        recipe=list(_recipe(summary)),
        space=_space(summary),
        spec=_json(summary.study.spec) if summary.study.spec else "",
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _tiles(summary: Summary) -> Iterator[Tile]:
    yield _best_tile(summary)
    states = ", ".join(f"{count} {state.value}" for state, count in summary.counts.items())
    yield Tile("Trials", f"{len(summary.trials):,}", states or "none has started")
    cost, elapsed_s = summary.cost, summary.study.elapsed_s
    yield Tile(
        "Time",
        quantities.duration(elapsed_s),
        f"{quantities.duration(cost.time_s)} in rungs, {quantities.duration(cost.cpu_s)} of CPU time",
    )
    yield Tile.energy(cost.energy)


def _best_tile(summary: Summary) -> Tile:
    best, goals = summary.best, summary.objective.goals
    if best is None:
        waiting = summary.study.state is StudyState.RUNNING
        return Tile(
            f"Best {goals[0].metric}", quantities.MISSING, "no result yet" if waiting else "no trial has a result"
        )
    value = summary.format(goals[0].metric, best.metrics[goals[0].metric])
    where = f"trial {best.number}, level {best.level}, {quantities.count(summary.epochs_of(best), 'epoch')}"
    if not summary.is_feasible(best):
        return Tile(f"Nearest {goals[0].metric}", value, where, badge="requirements violated")
    if len(goals) > 1:
        front = [trial.metrics for trial in summary.front]
        ends = [(goal, min((metrics[goal.metric] for metrics in front), key=goal.loss)) for goal in goals]
        note = ", ".join(f"{goal} {summary.format(goal.metric, end)}" for goal, end in ends)
        return Tile("Pareto front", quantities.count(len(summary.front), "trial"), note, accent=True)
    return Tile(f"Best {goals[0].metric}", value, where, badge=summary.labels.get(goals[0].metric, ""), accent=True)


def _best_title(summary: Summary) -> str:
    if summary.best is None or summary.is_feasible(summary.best):
        return "Best" if len(summary.objective.goals) == 1 else "Recommended"
    return "Nearest"


def _best_note(summary: Summary) -> str:
    if summary.best is None:
        if summary.study.state is StudyState.RUNNING:
            return "No trial has a result yet."
        return "No trial finished a rung." + (" The failures below say why." if summary.failures else "")
    if not summary.is_feasible(summary.best):
        return "No trial meets the requirements. This one is nearest."
    if summary.recommendation is not None and not summary.recommendation.devices:
        return "; ".join((*summary.recommendation.shortfalls, *summary.recommendation.reasons))
    return ""


def _reached(summary: Summary, best: Trial) -> Iterator[tuple[str, str]]:
    for metric in sorted(
        summary.metrics, key=lambda name: name in TRAINING_COSTS and name not in summary.objective.metrics
    ):
        if metric in best.metrics and not _is_shown_by_device(summary, metric):
            way = summary.labels.get(metric)
            yield metric, summary.format(metric, best.metrics[metric]) + (f" ({way})" if way else "")
    for metric, value in summary.test.items():
        yield f"{metric} on test data", summary.format(metric, value)
    yield "level", f"{best.level} ({phrases.grant(best.finished_rungs[-1].grant)})"
    yield "training time, all rungs", quantities.duration(best.cost.time_s)
    yield "training energy, all rungs", phrases.energy(best.cost.energy)


def _is_shown_by_device(summary: Summary, metric: str) -> bool:
    """Return whether a metric names its device and is not a goal, so that the serving section shows it."""
    return metric.partition("@")[2] in summary.devices and metric not in summary.objective.metrics


def _trials(summary: Summary) -> Table:
    table = trials_table(summary, summary.ranking[:SHOWN])
    return table.with_columns(lambda column: not _is_shown_by_device(summary, column.title))


def _front(summary: Summary) -> Table:
    """Return the trials of the Pareto front with their goals, and how forks are compressed."""
    table = trials_table(summary, summary.front_by_goal)
    return table.with_columns(
        lambda column: column.kind in (ColumnKind.TRIAL, ColumnKind.GOAL) or column.title == VARIANT
    )


def _measured(summary: Summary) -> Iterator[tuple[str, str]]:
    reported = [m for m in summary.metrics if m not in TRAINING_COSTS]
    names = ", ".join(m for m in reported if not (summary.servings and is_serving_metric(m)))
    yield "metrics", f"{names}, as the workload reports them at the end of a rung" if names else "nothing yet"
    yield "order", _order(summary)
    yield "time", "on a monotonic clock; in rungs: the sum over all rungs, which may run in parallel"
    yield "CPU time", "of the training processes, over all their threads"
    yield "energy", phrases.energy_source(summary.cost.energy)
    if summary.servings:
        where = ", ".join(summary.devices)
        sources = "; ".join(f"{label}: {meaning}" for label, meaning in explained(summary))
        yield "serving", f"on {where}, one batch at a time" + (f"; {sources}" if sources else "")
    peak = summary.cost.memory_bytes
    yield (
        "memory",
        "peak resident memory of a trial's process"
        + (f"; the highest was {quantities.size(peak)}" if peak is not None else "; not recorded"),
    )


def _order(summary: Summary) -> str:
    within = "Pareto fronts and, inside a front, by preference" if len(summary.objective.goals) > 1 else "the goal"
    last = ["failed later"] + (["violate a requirement"] if summary.objective.require else [])
    return (
        "a trial is ranked by its latest finished rung; higher levels come first, within a level the order is by "
        f"{within}, and trials that {' or '.join(last)} come last"
    )


def _recipe(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "workload", summary.workload
    yield "objective", phrases.goals(summary.objective)
    for key, value in summary.study.spec.items():
        if key not in SHOWN_ELSEWHERE and value not in (None, "", [], {}):
            yield key, quantities.metric(key, value) if isinstance(value, float) else _on_one_line(value)
    yield "started", quantities.timestamp(summary.study.created)


def _on_one_line(value: Any) -> str:
    """Format a value of the spec on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_on_one_line(item)}" for key, item in value.items() if item is not None) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_on_one_line, value)) or "none"
    return quantities.setting(value) if isinstance(value, (float, bool)) else str(value)


def _space(summary: Summary) -> Table:
    titles = ("parameter", "group", "values", "default", "active when")
    columns = tuple(Column(title, numeric=False) for title in titles)
    rows = (
        Row.of(
            name,
            summary.groups.get(name, quantities.MISSING),
            _values(parameter),
            _default(parameter),
            _when(parameter),
        )
        for name, parameter in summary.parameters.items()
    )
    return Table("space", "Space", columns, tuple(rows))


def _values(parameter: Parameter) -> str:
    if isinstance(parameter, Choice):
        return ", ".join(map(quantities.setting, parameter.options))
    ends = f"{quantities.setting(parameter.low)} to {quantities.setting(parameter.high)}"
    return f"{ends}, logarithmic" if parameter.log else ends


def _default(parameter: Parameter) -> str:
    return quantities.MISSING if parameter.default is None else quantities.setting(parameter.default)


def _when(parameter: Parameter) -> str:
    conditions = []
    for parent, wanted in parameter.when.items():
        options = wanted if isinstance(wanted, (list, tuple, set)) else (wanted,)
        conditions.append(f"{parent} is {' or '.join(map(quantities.setting, options))}")
    return " and ".join(conditions) or "always"
