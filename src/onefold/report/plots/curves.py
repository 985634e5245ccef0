"""Learning curves: a metric over the epochs of every trial."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from onefold.report.plots.axes import Frame, left_margin, level, upright
from onefold.report.plots.marks import Plot, direction, first_words, ramp, said, shades, trial_words
from onefold.report.plots.scale import Scale, fitted, unit_of
from onefold.report.plots.svg import Point, element, picture, polyline, text
from onefold.report.study.summary import Curve, Summary

NAME, TITLE = "curves", "Learning curves"
POINTS = 80  # of one curve; more cannot be told apart


def curves(summary: Summary) -> Plot:
    """A line for each trial, the better the stronger; the best trial on top."""
    if not summary.curves:
        return Plot(NAME, TITLE, "No epoch has been recorded, so there are no learning curves to show.")
    caption = f"{summary.curve_metric} after each epoch of every trial."
    legend = ramp(summary)
    best = summary.best
    if best is not None and any(curve.trial == best.number for curve in summary.curves):
        legend.append(("line best", first_words(summary)))
    return Plot(NAME, TITLE, caption, _drawing(summary), tuple(legend))


def _drawing(summary: Summary) -> Markup:
    metric = summary.curve_metric
    values = [value for curve in summary.curves for _, value in curve.points]
    unit, size = unit_of(metric, values)
    frame = Frame(560, 320)
    y = fitted(values, frame.y_end - 8, frame.top, size)
    best = next((c for c in summary.curves if summary.best and c.trial == summary.best.number), None)
    value = "" if best is None else summary.written(metric, best.points[-1][1])
    frame = Frame(560, 320, left=left_margin(y), right=8.2 * len(value) + 14)
    last = max(number for curve in summary.curves for number, _ in curve.points)
    x = Scale(1.0, float(max(last, 2)), frame.left + 6, frame.x_end)
    hint = next((direction(goal) for goal in summary.objective.goals if goal.metric == metric), "")
    parts = [upright(frame, y, f"{metric} ({unit})" if unit else metric, hint), level(frame, x, "epoch", min(6, last))]
    colours, place = shades(summary), {trial.number: i for i, trial in enumerate(summary.ranking)}
    spoken = {trial.number: trial_words(summary, trial) for trial in summary.trials}
    for curve in sorted(summary.curves, key=lambda c: -place.get(c.trial, len(place))):
        points = [(x(number), y(value)) for number, value in thinned(curve.points)]
        kind = "best" if curve is best else f"faint {colours.get(curve.trial, 'none')}"
        parts.append(_mark(curve, points, kind, spoken.get(curve.trial, f"trial {curve.trial}")))
    if best is not None:
        end = best.points[-1]
        parts.append(text(x(end[0]) + 8, y(end[1]) + 4.5, value, class_="value best halo"))
    return picture(frame.width, frame.height, f"{metric} over epochs", parts)


def _mark(curve: Curve, points: Sequence[Point], kind: str, spoken: str) -> Markup:
    if len(points) == 1:
        (x, y) = points[0]
        return element("circle", said(spoken), class_=f"dot {kind}", cx=x, cy=y, r=2.6, data_t=curve.trial)
    return element("path", said(spoken), class_=f"line {kind}", d=polyline(points), data_t=curve.trial)


def thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """At most about `POINTS` of them, evenly, always with the last."""
    every = math.ceil(len(points) / POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
