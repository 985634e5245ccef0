"""Plots of a retraining over time: memory, validation metric and loss.

A plan has the same color in all plots, and a lane at the bottom shows its number; the chosen plan is highlighted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from onefold.report.plots.axes import LETTER, Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import Plot, dot, shade, tooltip
from onefold.report.plots.scale import Scale, fitted, unit_of, with_unit
from onefold.report.plots.svg import Point, element, picture, polyline, staircase, text
from onefold.report.retraining.facts import numbered
from onefold.vocabulary import quantities
from onefold.vocabulary.retraining import MicroWindow, RetrainingPlan, RetrainingSummary

WIDTH, HEIGHT = 560.0, 320.0
LANE = 26.0  # height below the data for the numbers of plans
THICK = 5.0  # a bar
MANY = 6  # plans, above which the legend shows a color ramp
GIVEN, PREDICTED, LIMIT = "dot plain hollow", "dot plain hollow", "line cross"


@dataclass(frozen=True, slots=True)
class PlotAxes:
    """The axes of a plot and its elements so far."""

    x: Scale
    y: Scale
    parts: tuple[Markup, ...]


def memory(retrained: RetrainingSummary) -> Plot:
    """Plot measured peaks as bars, predicted ones as rings, and the limit."""
    name, title = "memory", "Memory, predicted and measured"
    if not retrained.windows:
        return Plot(name, title, "No micro-window was run, so there is no memory to show.")
    windows = retrained.windows
    values = [0.0, float(retrained.limits.memory_bytes)]
    values += [float(value) for window in windows for value in (window.predicted_bytes, window.limit_bytes)]
    values += [float(window.measured_bytes) for window in windows if window.measured_bytes is not None]
    last = quantities.size(windows[-1].limit_bytes)
    plot_axes = _axes(retrained, "memory_bytes", "peak memory", "", values, last)
    x, y = plot_axes.x, plot_axes.y
    parts = [*plot_axes.parts, _limit(retrained, x, y)]
    for window, kind, number in _styled_windows(retrained):
        if window.measured_bytes is not None:
            description = (
                f"micro-window {window.number}, plan {number}: measured {quantities.size(window.measured_bytes)}"
            )
            parts.append(_bar(window, y(window.measured_bytes), x, kind, description, number))
    for window, _, number in _styled_windows(retrained):
        middle = x(window.began_s / 2 + window.ended_s / 2)
        description = (
            f"micro-window {window.number}, plan {number}: predicted {quantities.size(window.predicted_bytes)}"
        )
        parts.append(dot((middle, y(window.predicted_bytes)), 3.2, PREDICTED, description, data_t=number))
    parts.append(text(x.end + 8, y(windows[-1].limit_bytes) + 4.5, last, class_="value"))
    known = any(window.measured_bytes is not None for window in windows)
    legend = [*(_legend(retrained, "cell") if known else ()), (PREDICTED, "predicted"), (LIMIT, "limit")]
    measured = "measured peak (bar)" if known else "no measured peak (not reported by the system)"
    caption = f"Each micro-window: {measured} and predicted peak (ring), below the limit."
    return Plot(name, title, caption, picture(WIDTH, HEIGHT, title, parts), tuple(legend))


def metric(retrained: RetrainingSummary) -> Plot:
    """Plot the validation metric after each micro-window, with that of the given model."""
    name, title = "metric", "Validation metric"
    scored = [(look, look[0].score) for look in _styled_windows(retrained)]
    known = [(look, score) for look, score in scored if score is not None and math.isfinite(score)]
    if not known:
        return Plot(name, title, f"No micro-window was evaluated for {retrained.metric}.")
    before, after = retrained.before, retrained.after
    values = [*(score for _, score in known), *(value for value in (before, after) if math.isfinite(value))]
    places = quantities.decimals(values)
    label = quantities.metric(retrained.metric, after, places)
    hint = "higher is better" if retrained.higher_is_better else "lower is better"
    plot_axes = _axes(retrained, retrained.metric, retrained.metric, hint, values, label)
    x, y, parts = plot_axes.x, plot_axes.y, list(plot_axes.parts)
    if math.isfinite(after):
        parts.append(element("path", class_="line best thin", d=f"M{x.start:.1f} {y(after):.1f}H{x.end:.1f}"))
        parts.append(text(x.end + 8, y(after) + 4.5, label, class_="value best"))
    given: list[Point] = [(x(0.0), y(before))] if math.isfinite(before) else []
    way = [(x(look[0].ended_s), y(score)) for look, score in known]
    parts.append(element("path", class_="line none", d=polyline([*given, *way])))
    description = f"the given model: {quantities.metric(retrained.metric, before, places)}"
    parts += [dot(center, 4, GIVEN, description) for center in given]
    for ((window, kind, number), score), center in zip(known, way):
        reached = quantities.metric(retrained.metric, score, places)
        description = f"micro-window {window.number}, plan {number}: {reached}"
        parts.append(dot(center, 4, f"dot {kind}", description, data_t=number))
    caption = f"{retrained.metric} on validation data after each micro-window."
    legend = [*_legend(retrained, "dot"), (GIVEN, "given model"), ("line best thin", "returned model")]
    return Plot(name, title, caption, picture(WIDTH, HEIGHT, title, parts), tuple(legend))


def loss(retrained: RetrainingSummary) -> Plot:
    """Plot the mean training loss of each micro-window as a bar."""
    name, title = "loss", "Training loss"
    known = [look for look in _styled_windows(retrained) if math.isfinite(look[0].loss)]
    if not known:
        return Plot(name, title, "No micro-window has a loss to show.")
    plot_axes = _axes(retrained, "", "loss", "lower is better", [window.loss for window, _, _ in known], "")
    parts = list(plot_axes.parts)
    for window, kind, number in known:
        description = f"micro-window {window.number}, plan {number}: loss {quantities.number(window.loss)}"
        parts.append(_bar(window, plot_axes.y(window.loss), plot_axes.x, kind, description, number))
    caption = "Mean over the samples of each micro-window."
    return Plot(name, title, caption, picture(WIDTH, HEIGHT, title, parts), tuple(_legend(retrained, "cell")))


def _colors(retrained: RetrainingSummary) -> dict[RetrainingPlan, str]:
    """Return the color of each plan that was tried."""
    tried = dict.fromkeys(window.plan for window in retrained.windows)
    others = [plan for plan in numbered(retrained) if plan in tried and plan != retrained.chosen]
    shades = {plan: shade((index + 1) / len(others)) for index, plan in enumerate(others)}
    return {plan: shades.get(plan, "best") for plan in tried}


def _styled_windows(retrained: RetrainingSummary) -> list[tuple[MicroWindow, str, int]]:
    """Return each micro-window with the color and the number of its plan."""
    colors, numbers = _colors(retrained), numbered(retrained)
    return [(window, colors[window.plan], numbers[window.plan]) for window in retrained.windows]


def _legend(retrained: RetrainingSummary, mark: str) -> Iterator[tuple[str, str]]:
    numbers, colors = numbered(retrained), _colors(retrained)
    plans = sorted(colors, key=lambda plan: numbers[plan])
    if len(plans) > MANY:
        yield "ramp", f"{len(plans)} plans by number"
        plans = [plan for plan in plans if plan == retrained.chosen]
    for plan in plans:
        chosen = ", chosen" if plan == retrained.chosen else ""
        yield f"{mark} {colors[plan]}", f"plan {numbers[plan]}{chosen}"


def _axes(
    retrained: RetrainingSummary, name: str, title: str, hint: str, values: Sequence[float], label: str
) -> PlotAxes:
    """Return axes for these values, with the lane of plans; `label` is shown right of the data."""
    unit, size = unit_of(name, values)
    bottom = Frame(WIDTH, HEIGHT).y_end - LANE
    y = fitted(values, bottom, Frame(WIDTH, HEIGHT).top, size)
    frame = Frame(WIDTH, HEIGHT, left=left_margin(y), right=8.2 * len(label) + 14 if label else 12.0)
    end_s = max([retrained.elapsed_s, *(window.ended_s for window in retrained.windows), 1e-9])
    time_unit, second = unit_of("time_s", [end_s])
    x = Scale(0.0, end_s, frame.left, frame.x_end, unit=second)
    hint = f"{hint}, logarithmic" if y.log else hint
    axes = [y_axis(frame, y, with_unit(title, unit), hint), x_axis(frame, x, with_unit("time", time_unit))]
    return PlotAxes(x, y, (*axes, *_lane(retrained, frame, x)))


def _lane(retrained: RetrainingSummary, frame: Frame, x: Scale) -> Iterator[Markup]:
    """Yield a bar per micro-window in the color of its plan, with the number if it fits."""
    base = frame.y_end - THICK / 2 - 2
    yield text(frame.left - 8, base + 2, "plan", class_="tick", text_anchor="end")
    for number, group in groupby(_styled_windows(retrained), key=lambda look: look[2]):
        looks = list(group)
        for window, kind, _ in looks:
            yield _bar(window, base, x, kind, f"micro-window {window.number}, plan {number}", number)
        left = x(looks[0][0].began_s)
        if x(looks[-1][0].ended_s) - left >= len(str(number)) * LETTER:
            yield text(left, base - 6, str(number), class_="tick")


def _limit(retrained: RetrainingSummary, x: Scale, y: Scale) -> Markup:
    """Draw the limit as a staircase: each micro-window records the limit at its end."""
    points = [(x.start, y(retrained.limits.memory_bytes))]
    points += [(x(window.ended_s), y(window.limit_bytes)) for window in retrained.windows]
    points.append((x.end, points[-1][1]))
    return element("path", tooltip("the limit"), class_=LIMIT, d=staircase(points))


def _bar(window: MicroWindow, middle: float, x: Scale, color: str, description: str, number: int) -> Markup:
    """Draw a bar as wide as the micro-window, minus a gap."""
    left = x(window.began_s)
    wide = max(x(window.ended_s) - left - 1, 1.0)
    box = {"x": left, "y": middle - THICK / 2, "width": wide, "height": THICK, "rx": 1.5}
    return element("rect", tooltip(description), class_=f"cell {color}", **box, data_t=number)
