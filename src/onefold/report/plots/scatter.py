"""A property of models against another one, with some models marked and named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from onefold.report.plots.axes import LETTER, Frame, left_margin, x_axis, y_axis
from onefold.report.plots.marks import Plot, dot
from onefold.report.plots.scale import fitted, unit_of, with_unit
from onefold.report.plots.svg import picture, text

OTHER = "dot plain"
WIDTH, HEIGHT = 560, 320


@dataclass(frozen=True, slots=True)
class ScatterPoint:
    """One model: its CSS classes, its tooltip, and the name that is written beside it, if any."""

    x: float
    y: float
    tooltip: str
    trial: int
    kind: str = OTHER
    name: str = ""


@dataclass(frozen=True, slots=True)
class ScatterAxis:
    """The metric of an axis, which gives the unit, its title and a hint."""

    metric: str
    title: str
    hint: str


def scatter(
    name: str,
    title: str,
    caption: str,
    points: Sequence[ScatterPoint],
    axes: tuple[ScatterAxis, ScatterAxis],
    legend: Sequence[tuple[str, str]],
) -> Plot:
    """Draw a dot per model, the marked ones on top; `axes` are those of x and y."""
    if not points:
        return Plot(name, title, "No model was measured.")
    drawn = {point.kind for point in points}
    shown = tuple((kind, label) for kind, label in legend if kind in drawn)
    return Plot(name, title, caption, _drawing(title, points, axes), shown)


def _drawing(title: str, points: Sequence[ScatterPoint], axes: tuple[ScatterAxis, ScatterAxis]) -> Markup:
    across, up = axes
    (x_unit, x_size), (y_unit, y_size) = (
        unit_of(across.metric, [point.x for point in points]),
        unit_of(up.metric, [point.y for point in points]),
    )
    frame = Frame(WIDTH, HEIGHT, right=24)
    y = fitted([point.y for point in points], frame.y_end - 8, frame.top + 12, y_size)
    frame = Frame(WIDTH, HEIGHT, left=left_margin(y), right=24)
    x = fitted([point.x for point in points], frame.left + 6, frame.x_end - 6, x_size)
    parts = [
        y_axis(frame, y, with_unit(up.title, y_unit), up.hint),
        x_axis(frame, x, f"{with_unit(across.title, x_unit)}, {across.hint}"),
    ]
    for point in sorted(points, key=lambda point: point.kind != OTHER):
        radius = 3.2 if point.kind == OTHER else 4.4
        parts.append(dot((x(point.x), y(point.y)), radius, point.kind, point.tooltip, data_t=point.trial))
    parts += _names([(x(point.x), y(point.y), point.name) for point in points if point.name])
    return picture(WIDTH, HEIGHT, title, parts)


def _names(marks: Sequence[tuple[float, float, str]]) -> Iterator[Markup]:
    """Write each name above its dot, or below it where another one is; to the left near the right edge."""
    taken: list[tuple[float, float]] = []
    for x, y, name in marks:
        left = x + 7 + len(name) * LETTER > WIDTH
        base = y - 7
        if any(abs(base - other) < 12 and abs(x - at) < len(name) * LETTER + 40 for at, other in taken):
            base = y + 15
        taken.append((x, base))
        yield text(x - 7 if left else x + 7, base, name, class_="value", text_anchor="end" if left else "start")
