"""Learning curves: a metric over the epochs of every trial."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from onefold.report.plots.axes import Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import (
    Plot,
    direction,
    dot,
    ranking_legend,
    tooltip,
    trial_label,
    trial_shades,
    winner_label,
)
from onefold.report.plots.scale import Scale, fitted, unit_of, with_unit
from onefold.report.plots.svg import Point, element, picture, polyline, text
from onefold.report.study.course import LearningCurve
from onefold.report.study.summary import Summary

NAME, TITLE = "curves", "Learning curves"
POINTS = 80  # per curve; more cannot be distinguished


def curves(summary: Summary) -> Plot:
    """Draw a line per trial, colored by rank, with the best trial on top."""
    if not summary.curves:
        return Plot(NAME, TITLE, "No epoch has been recorded, so there are no learning curves to show.")
    few, all_trials = len(summary.curves), len(summary.last_epochs)
    whose = "every trial" if few >= all_trials else f"{few} of {all_trials} trials, the best ones"
    caption = f"{summary.curve_metric} after each epoch of {whose}."
    legend = ranking_legend(summary)
    best = summary.best
    if best is not None and any(curve.trial == best.number for curve in summary.curves):
        legend.append(("line best", winner_label(summary)))
    return Plot(NAME, TITLE, caption, _drawing(summary), tuple(legend))


def _drawing(summary: Summary) -> Markup:
    metric = summary.curve_metric
    values = [value for curve in summary.curves for _, value in curve.points]
    unit, size = unit_of(metric, values)
    frame = Frame(560, 320)
    y = fitted(values, frame.y_end - 8, frame.top, size)
    best = next((c for c in summary.curves if summary.best and c.trial == summary.best.number), None)
    value = "" if best is None else summary.format(metric, best.points[-1][1])
    frame = Frame(560, 320, left=left_margin(y), right=8.2 * len(value) + 14)
    last = max(number for curve in summary.curves for number, _ in curve.points)
    x = Scale(1.0, float(max(last, 2)), frame.left + 6, frame.x_end)
    hint = next((direction(goal) for goal in summary.objective.goals if goal.metric == metric), "")
    parts = [y_axis(frame, y, with_unit(metric, unit), hint), x_axis(frame, x, "epoch", min(6, last))]
    colors, rank = trial_shades(summary), {trial.number: i for i, trial in enumerate(summary.ranking)}
    labels = {trial.number: trial_label(summary, trial) for trial in summary.trials}
    for curve in sorted(summary.curves, key=lambda c: -rank.get(c.trial, len(rank))):
        points = [(x(number), y(value)) for number, value in thinned(curve.points)]
        kind = "best" if curve is best else f"faint {colors.get(curve.trial, 'none')}"
        parts.append(_mark(curve, points, kind, labels.get(curve.trial, f"trial {curve.trial}")))
    if best is not None:
        end = best.points[-1]
        parts.append(text(x(end[0]) + 8, y(end[1]) + 4.5, value, class_="value best halo"))
    return picture(frame.width, frame.height, f"{metric} over epochs", parts)


def _mark(curve: LearningCurve, points: Sequence[Point], kind: str, label: str) -> Markup:
    if len(points) == 1:
        return dot(points[0], 2.6, f"dot {kind}", label, data_t=curve.trial)
    return element("path", tooltip(label), class_=f"line {kind}", d=polyline(points), data_t=curve.trial)


def thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return at most about `POINTS` of the points, evenly spaced, always with the last one."""
    every = math.ceil(len(points) / POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
