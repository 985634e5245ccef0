"""The best result over time, and every finished rung."""

from __future__ import annotations

import math
from collections.abc import Iterator

from markupsafe import Markup

from onefold.report.plots.axes import Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import Plot, direction, dot, level_shades, tooltip
from onefold.report.plots.scale import Scale, fitted, unit_of, with_unit
from onefold.report.plots.svg import cross, element, picture, staircase, text
from onefold.report.study.course import RungResult
from onefold.report.study.summary import Summary
from onefold.vocabulary import quantities

NAME, TITLE = "progress", "Progress"


def progress(summary: Summary) -> Plot:
    """Draw a dot per finished rung, colored by level, and the value of the best trial over time."""
    moments = [moment for moment in summary.progress if math.isfinite(moment.value)]
    if not moments:
        return Plot(NAME, TITLE, "No rung has finished, so there is no progress to show.")
    colors = level_shades(summary)
    legend = [(f"dot {colors[level]}", f"level {level}") for level in sorted(colors)]
    if len(legend) > 6:
        legend = [("ramp", f"level {min(colors)} to {max(colors)}")]
    if any(moment.best is not None for moment in moments):
        several = len(summary.objective.goals) > 1
        legend.append(("line best", f"{summary.objective.goals[0] if several else 'best trial'} at that time"))
    if not all(moment.keeps for moment in moments):
        legend.append(("dot hollow", "violates a requirement"))
    if summary.failures:
        legend.append(("cross", "failed"))
    caption = f"{summary.goal_metric} of every finished rung against the time since the study began."
    return Plot(NAME, TITLE, caption, _drawing(summary, moments), tuple(legend))


def _drawing(summary: Summary, moments: list[RungResult]) -> Markup:
    metric = summary.goal_metric
    values = [moment.value for moment in moments]
    unit, size = unit_of(metric, values)
    frame = Frame(560, 320)
    y = fitted(values, frame.y_end - 8, frame.top, size)
    frame = Frame(560, 320, left=left_margin(y), right=_right_margin(summary, moments))
    end_s = max(moments[-1].time_s, summary.study.elapsed_s, 1e-9)
    time_unit, time_size = unit_of("time_s", [end_s])
    x = Scale(0.0, end_s, frame.left, frame.x_end, unit=time_size)
    hint = direction(summary.objective.goals[0])
    parts = [y_axis(frame, y, with_unit(metric, unit), hint), x_axis(frame, x, with_unit("time", time_unit))]
    parts += _failures(summary, frame, x)
    parts += _dots(summary, moments, x, y)
    parts += _best(summary, moments, x, y)
    return picture(frame.width, frame.height, f"{metric} over time", parts)


def _right_margin(summary: Summary, moments: list[RungResult]) -> float:
    best = moments[-1].best
    return 20.0 if best is None else 8.2 * len(summary.format(summary.goal_metric, best)) + 14


def _dots(summary: Summary, moments: list[RungResult], x: Scale, y: Scale) -> Iterator[Markup]:
    colors = level_shades(summary)
    for moment in moments:
        value = summary.format(summary.goal_metric, moment.value)
        label = f"trial {moment.trial}, level {moment.level}: {value} after {quantities.duration(moment.time_s)}"
        style = f"dot {colors[moment.level]}" + ("" if moment.keeps else " hollow")
        yield dot((x(moment.time_s), y(moment.value)), 3.4, style, label, data_t=moment.trial)


def _best(summary: Summary, moments: list[RungResult], x: Scale, y: Scale) -> Iterator[Markup]:
    points = [(x(moment.time_s), y(moment.best)) for moment in moments if moment.best is not None]
    last = moments[-1].best
    if not points or last is None:
        return
    yield element("path", class_="line best", d=staircase([*points, (x.end, points[-1][1])]))
    value = summary.format(summary.goal_metric, last)
    yield text(x.end + 8, points[-1][1] + 4.5, value, class_="value best")


def _failures(summary: Summary, frame: Frame, x: Scale) -> Iterator[Markup]:
    for failed in summary.failures:
        rung = failed.rung
        if rung.ended_s is not None:
            label = f"trial {rung.trial}, level {rung.grant.level}: failed, {failed.failure.kind.value}"
            yield element(
                "path", tooltip(label), class_="cross", d=cross(x(rung.ended_s), frame.y_end, 3.2), data_t=rung.trial
            )
