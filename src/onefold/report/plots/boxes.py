"""Box plots: median, interquartile range, whiskers and outliers of several samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from onefold.report.plots.axes import LETTER, Frame, left_margin, y_axis
from onefold.report.plots.marks import Plot, tooltip
from onefold.report.plots.parallel import wrapped
from onefold.report.plots.scale import Scale, fitted
from onefold.report.plots.svg import element, picture, text
from onefold.vocabulary import quantities

WIDTH, HEIGHT = 560.0, 320.0
BOX_WIDTH = 44.0  # pixels of a box
WHISKER_REACH = 1.5  # whisker length in interquartile ranges
MANY_TIMES = 10.0  # values that differ by more than this factor are shown on a logarithmic scale
LEGEND = (
    ("cell boxed", "interquartile range"),
    ("line best", "median, in numbers below"),
    ("dot plain hollow", "outlier"),
)


@dataclass(frozen=True, slots=True)
class Box:
    """Quartiles, whisker ends and outliers of a sample."""

    low: float
    lower: float
    median: float
    upper: float
    high: float
    outliers: tuple[float, ...]


def box_of(values: Sequence[float]) -> Box:
    """Return the box of a sample of at least one value."""
    numbers = np.sort(np.asarray(values, dtype=np.float64))
    lower, median, upper = (float(number) for number in np.quantile(numbers, [0.25, 0.5, 0.75]))
    reach = WHISKER_REACH * (upper - lower)
    near = (numbers >= lower - reach) & (numbers <= upper + reach)
    # Quartiles are interpolated: in a small sample the last value within reach may lie inside the box.
    low, high = min(float(numbers[near].min()), lower), max(float(numbers[near].max()), upper)
    return Box(low, lower, median, upper, high, tuple(numbers[~near].tolist()))


def boxes(
    name: str,
    title: str,
    caption: str,
    samples: Mapping[str, Sequence[float]],
    *,
    axis: str,
    base: float,
    unit: float = 1.0,
    format_value: Callable[[float], str] = quantities.number,
) -> Plot:
    """Draw a box per sample, by label. A line marks `base`; axis labels count in `unit`s."""
    known = {label: [value for value in values if math.isfinite(value)] for label, values in samples.items()}
    known = {label: values for label, values in known.items() if values}
    if not known:
        return Plot(name, title, "There is no model to show.")
    boxes_by_label = {label: box_of(values) for label, values in known.items()}
    legend = LEGEND if any(box.outliers for box in boxes_by_label.values()) else LEGEND[:2]
    every = [base, *(value for values in known.values() for value in values)]
    frame = Frame(WIDTH, HEIGHT, right=4, bottom=58)
    y = _scale(every, frame, unit)
    frame = Frame(WIDTH, HEIGHT, left=left_margin(y), right=4, bottom=58)
    parts = [y_axis(frame, y, axis, "logarithmic" if y.log else "")]
    parts.append(element("path", class_="post", d=f"M{frame.left:.0f} {y(base):.1f}H{frame.x_end:.0f}"))
    room = (frame.x_end - frame.left) / len(boxes_by_label)
    for index, (label, box) in enumerate(boxes_by_label.items()):
        middle = frame.left + room * (index + 0.5)
        parts.append(
            _drawn(box, middle, min(BOX_WIDTH, room * 0.56), y, _tooltip_text(label, box, known[label], format_value))
        )
        below = frame.y_end + 20
        parts.append(text(middle, below, format_value(box.median), class_="value", text_anchor="middle"))
        parts += _label(label, middle, below + 16, room)
    return Plot(name, title, caption, picture(frame.width, frame.height, title, parts), legend)


def _scale(values: Sequence[float], frame: Frame, unit: float) -> Scale:
    low, high = min(values), max(values)
    if low > 0 and high / low > MANY_TIMES:
        room = (high / low) ** 0.03
        return Scale(low / room, high * room, frame.y_end, frame.top, log=True, unit=unit)
    return fitted(values, frame.y_end, frame.top, unit)


def _drawn(box: Box, middle: float, wide: float, y: Scale, description: str) -> Markup:
    left, right = middle - wide / 2, middle + wide / 2
    cap = wide / 5
    whiskers = "".join(
        f"M{middle:.1f} {y(start):.1f}V{y(end):.1f}M{middle - cap:.1f} {y(end):.1f}h{2 * cap:.1f}"
        for start, end in ((box.lower, box.low), (box.upper, box.high))
    )
    top = y(box.upper)
    parts = [
        element("path", class_="line whisker", d=whiskers),
        element("rect", class_="cell boxed", x=left, y=top, width=wide, height=max(y(box.lower) - top, 1.0), rx=2),
        element("path", class_="line best", d=f"M{left:.1f} {y(box.median):.1f}H{right:.1f}"),
        *(element("circle", class_="dot plain hollow", cx=middle, cy=y(value), r=3) for value in box.outliers),
    ]
    return element("g", tooltip(description), *parts, data_cell="box")


def _label(label: str, middle: float, below: float, room: float) -> Iterator[Markup]:
    for row, part in enumerate(wrapped(label, max(4, int(room / LETTER)))):
        yield text(middle, below + 15 * row, part.strip(), class_="tick", text_anchor="middle")


def _tooltip_text(label: str, box: Box, values: Sequence[float], format_value: Callable[[float], str]) -> str:
    lines = [
        f"{label}: {quantities.count(len(values), 'model')}",
        f"median {format_value(box.median)}, "
        f"interquartile range {format_value(box.lower)} to {format_value(box.upper)}",
        f"range {format_value(min(values))} to {format_value(max(values))}",
    ]
    return "\n".join([*lines, *([f"{len(box.outliers)} outliers"] if box.outliers else [])])
