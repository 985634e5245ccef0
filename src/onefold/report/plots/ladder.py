"""Rungs and promotions: the path of every trial through the levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from onefold.report import phrases
from onefold.report.plots.axes import LETTER
from onefold.report.plots.marks import Plot, dot, ranking_legend, tooltip, trial_shades
from onefold.report.plots.svg import Point, cross, element, picture, ribbon, text
from onefold.report.study.summary import Summary
from onefold.vocabulary import quantities
from onefold.vocabulary.forks import fork_of
from onefold.vocabulary.ranking import is_rated
from onefold.vocabulary.records import Rung, RungState

NAME, TITLE = "rungs", "Rungs and promotions"
WIDTH, TOP, LEFT = 640.0, 58.0, 46.0
MAX_TRIAL_GAP, MIN_LABELED_GAP = 20.0, 13.0  # pixels per trial in a column: at most, and at least if it is labeled


@dataclass(frozen=True, slots=True)
class LadderMark:
    """The position of a trial in a column."""

    rung: Rung
    rank: int | None  # None without a result
    position: Point
    promoted: bool


def ladder(summary: Summary) -> Plot:
    """Draw a column per level with its trials, best on top; lines lead to the promoted trials."""
    if not summary.levels:
        return Plot(NAME, TITLE, "No rung has been decided yet.")
    if len(summary.levels) == 1:
        return Plot(NAME, TITLE, "Every trial has one rung, so there are no promotions to show.")
    legend = ranking_legend(summary)
    if any(level.done > level.promoted for level in summary.levels[:-1]):
        legend.append(("dot plain hollow", "not promoted"))
    if any(level.unfinished for level in summary.levels):
        legend.append(("dot waiting", "no result yet"))
    if summary.failures:
        legend.append(("cross", "failed"))
    caption = "Each column is a level with its trials, best on top. Lines lead to the promoted trials."
    caption += " Forks are not shown." if summary.forks else ""
    return Plot(NAME, TITLE, caption, _drawing(summary), tuple(legend))


def _drawing(summary: Summary) -> Markup:
    busiest = max(level.trials for level in summary.levels)
    height = max(64.0, min(420.0, busiest * 9.5))
    columns = _columns(summary, height)
    parts = [*_heads(summary), *_lines(summary, columns), *_marks(summary, columns), *_labels(summary, columns[-1])]
    return picture(WIDTH, TOP + height + 12, "rungs and promotions", parts)


def _columns(summary: Summary, height: float) -> list[list[LadderMark]]:
    """Return the marks of each level: results in the order of the objective, then running, then failed trials."""
    columns = []
    for x, level in zip(_column_positions(len(summary.levels)), summary.levels):
        visits = [
            (rung, index + 1 < len(trial.current_rungs))
            for trial in summary.trials
            if fork_of(trial.config) is None
            for index, rung in enumerate(trial.current_rungs)
            if rung.grant.level == level.grant.level
        ]
        rated = [v for v in visits if v[0].state is RungState.DONE and is_rated(v[0].metrics, summary.objective)]
        order = summary.objective.order([rung.metrics for rung, _ in rated])
        rest = sorted((v for v in visits if v not in rated), key=lambda v: v[0].state is RungState.FAILED)
        room = min(MAX_TRIAL_GAP, height / len(visits))
        marks = []
        for row, (rung, promoted) in enumerate([rated[index] for index in order] + rest):
            rank = row + 1 if row < len(rated) else None
            marks.append(LadderMark(rung, rank, (x, TOP + room * (row + 0.5)), promoted))
        columns.append(marks)
    return columns


def _column_positions(levels: int) -> list[float]:
    right = WIDTH - 150
    return [LEFT + (right - LEFT) * index / max(levels - 1, 1) for index in range(levels)]


def _heads(summary: Summary) -> Iterator[Markup]:
    positions = _column_positions(len(summary.levels))
    letters = int((positions[1] - positions[0]) / LETTER) - 1
    budgets = [phrases.grant(level.grant).split(",")[0] for level in summary.levels]
    crowded = max(map(len, budgets)) > letters
    if crowded:
        yield text(0, 29, "level", class_="axis")
        yield text(0, 44, "trials", class_="hint")
    for x, level, budget in zip(positions, summary.levels, budgets):
        if crowded:
            yield text(x, 29, str(level.grant.level), class_="axis", text_anchor="middle")
            yield text(x, 44, str(level.trials), class_="hint", text_anchor="middle")
        else:
            yield text(x, 14, f"level {level.grant.level}", class_="axis", text_anchor="middle")
            yield text(x, 29, budget, class_="hint", text_anchor="middle")
            yield text(x, 44, quantities.count(level.trials, "trial"), class_="hint", text_anchor="middle")


def _lines(summary: Summary, columns: Sequence[Sequence[LadderMark]]) -> Iterator[Markup]:
    paths: dict[int, list[Point]] = {}
    for column in columns:
        for mark in column:
            paths.setdefault(mark.rung.trial, []).append(mark.position)
    colors = trial_shades(summary)
    best = summary.best.number if summary.best else None
    order = {trial.number: -index for index, trial in enumerate(summary.ranking)}
    for trial in sorted(paths, key=lambda number: order.get(number, -len(order))):
        if len(paths[trial]) > 1:
            kind = "best" if trial == best else colors.get(trial, "lost")
            yield element("path", class_=f"line {kind}", d=ribbon(paths[trial]), data_t=trial)


def _marks(summary: Summary, columns: Sequence[Sequence[LadderMark]]) -> Iterator[Markup]:
    colors = trial_shades(summary)
    best = summary.best.number if summary.best else None
    for column in columns:
        for mark in column:
            rung, (x, y) = mark.rung, mark.position
            label = _tooltip_text(summary, mark, len(column))
            room = column[1].position[1] - column[0].position[1] if len(column) > 1 else MAX_TRIAL_GAP
            if rung.state is RungState.FAILED:
                size = max(1.4, min(3.0, room * 0.4))
                yield element("path", tooltip(label), class_="cross", d=cross(x, y, size), data_t=rung.trial)
                continue
            color = "best" if rung.trial == best else colors.get(rung.trial, "plain")
            ends = not mark.promoted and column is not columns[-1]
            kind = "waiting" if rung.state is RungState.DECIDED else f"{color} hollow" if ends else color
            yield dot((x, y), max(1.2, min(3.6, room * 0.42)), f"dot {kind}", label, data_t=rung.trial)


def _tooltip_text(summary: Summary, mark: LadderMark, count: int) -> str:
    rung = mark.rung
    label = f"trial {rung.trial}, level {rung.grant.level}"
    if rung.failure:
        return f"{label}: failed, {rung.failure.kind.value}"
    if mark.rank is None:
        return f"{label}: no result yet"
    value = summary.format(summary.goal_metric, rung.metrics[summary.goal_metric])
    return f"{label}: {value}, rank {mark.rank} of {count}" + (", promoted" if mark.promoted else "")


def _labels(summary: Summary, column: Sequence[LadderMark]) -> Iterator[Markup]:
    """Label the trials of the last column, if there is room."""
    best = summary.best.number if summary.best else None
    bottom = -MIN_LABELED_GAP
    for mark in column:
        x, y = mark.position
        if mark.rank is None or y - bottom < MIN_LABELED_GAP:
            continue
        bottom = y
        value = summary.format(summary.goal_metric, mark.rung.metrics[summary.goal_metric])
        kind = "value best" if mark.rung.trial == best else "value"
        yield text(x + 12, y + 4, f"{value}  trial {mark.rung.trial}", class_=kind, data_t=mark.rung.trial)
