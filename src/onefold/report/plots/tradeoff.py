"""Goals against each other, two by two, with the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from markupsafe import Markup

from onefold.report.plots.axes import LETTER, Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import Plot, direction, dot, trial_label
from onefold.report.plots.scale import fitted, unit_of, with_unit
from onefold.report.plots.svg import element, picture, staircase, text
from onefold.report.study.summary import Summary
from onefold.vocabulary.objective import Goal
from onefold.vocabulary.records import Trial

NAME, TITLE = "tradeoff", "Trade-off"
Pair = tuple[Goal, Goal]
Rectangle = tuple[float, float, float, float]  # left, top, right, bottom


def tradeoffs(summary: Summary) -> list[Plot]:
    """Return one plot for each pair of goals; a single one, which says why, if there is nothing to draw."""
    pairs = list(combinations(summary.objective.goals, 2))
    shown = pairs if summary.ranking else pairs[:1]
    return [replace(tradeoff(summary, pair), name=f"{NAME}-goals-{number}") for number, pair in enumerate(shown)]


def tradeoff(summary: Summary, pair: Pair, *, front: str = "Pareto front: not dominated by another trial") -> Plot:
    """Draw a dot per trial, the second goal of the pair over x and the first one over y, with the Pareto front.

    `front` is its label in the legend. The recommended trial is marked.
    """
    if not summary.ranking:
        return Plot(NAME, TITLE, "No trial has a result, so there is no trade-off to show.")
    first, second = pair
    levels = {trial.level for trial in summary.ranking}
    shown = f"the trials at level {max(levels)}" if len(levels) == 1 else "all trials, each at its latest rung"
    goals = len(summary.objective.goals)
    caption = f"Of {shown}" + (f"; the front is over all {goals} goals." if goals > 2 else ".")
    legend = [("dot plain", "trial")]
    if summary.front:
        legend.append(("dot best", front))
    if not all(summary.is_feasible(trial) for trial in summary.ranking):
        legend.append(("dot plain hollow", "violates a requirement"))
    if (chosen := _recommended(summary)) is not None:
        is_member = any(trial.number == chosen for trial in summary.front)
        legend.append((f"dot {'best' if is_member else 'plain'} chosen", f"recommended: trial {chosen}"))
    title = f"{first.metric.capitalize()} against {second.metric}"
    return Plot(NAME, title, caption, _drawing(summary, pair), tuple(legend))


def _drawing(summary: Summary, pair: Pair) -> Markup:
    first, second = pair
    ups = [trial.metrics[first.metric] for trial in summary.ranking]
    sides = [trial.metrics[second.metric] for trial in summary.ranking]
    (up_unit, up_size), (side_unit, side_size) = unit_of(first.metric, ups), unit_of(second.metric, sides)
    frame = Frame(560, 340, right=24)
    y = fitted(ups, frame.y_end - 8, frame.top + 6, up_size)
    frame = Frame(560, 340, left=left_margin(y), right=24)
    x = fitted(sides, frame.left + 6, frame.x_end, side_size)
    parts = [
        y_axis(frame, y, with_unit(first.metric, up_unit), direction(first)),
        x_axis(frame, x, f"{with_unit(second.metric, side_unit)}, {direction(second)}"),
    ]
    front = sorted(summary.front, key=lambda trial: second.loss(trial.metrics[second.metric]))
    positions = {trial.number: (x(side), y(up)) for trial, side, up in zip(summary.ranking, sides, ups)}
    if len(front) > 1 and len(summary.objective.goals) == 2:
        line = staircase([positions[trial.number] for trial in front])
        parts.append(element("path", class_="line best thin", d=line))
    members = {trial.number for trial in front}
    chosen = _recommended(summary)
    for trial in sorted(summary.ranking, key=lambda trial: (trial.number == chosen, trial.number in members)):
        kind = "dot best" if trial.number in members else "dot plain"
        style, radius = kind + ("" if summary.is_feasible(trial) else " hollow"), 4 if trial.number in members else 3.4
        if trial.number == chosen:
            style, radius = f"{style} chosen", 5
        parts.append(dot(positions[trial.number], radius, style, trial_label(summary, trial), data_t=trial.number))
    parts += _labels(front, positions, frame)
    return picture(frame.width, frame.height, f"{first.metric} against {second.metric}", parts)


def _recommended(summary: Summary) -> int | None:
    """Return the number of the recommended trial, if it is among those drawn."""
    number = summary.recommendation.trial if summary.recommendation is not None else None
    return number if any(trial.number == number for trial in summary.ranking) else None


def _labels(front: list[Trial], positions: dict[int, tuple[float, float]], frame: Frame) -> Iterator[Markup]:
    """Draw the numbers of the trials on the front, leaving out those that would overlap."""
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in (positions[trial.number] for trial in front)]
    for trial in front:
        number = str(trial.number)
        width = len(number) * LETTER + 4
        left, base = positions[trial.number][0] + 7, positions[trial.number][1] - 7
        box = (left, base - 10, left + width, base)
        if box[2] <= frame.width and box[1] > 2 and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            yield text(left, base, number, class_="value best", data_t=trial.number)


def _overlap(first: Rectangle, other: Rectangle) -> bool:
    return first[0] < other[2] and other[0] < first[2] and first[1] < other[3] and other[1] < first[3]
