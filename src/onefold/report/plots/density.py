"""Kernel density estimates of several samples as small multiples.

By hand instead of `scipy.stats.gaussian_kde`, which fails on samples without variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from onefold.report.plots.axes import Frame, x_axis
from onefold.report.plots.marks import Plot, tooltip
from onefold.report.plots.scale import Scale, fitted
from onefold.report.plots.svg import element, picture, shortened, text
from onefold.vocabulary import quantities

PANEL_WIDTH, PANEL_HEIGHT = 280.0, 150.0  # pixels of one drawing
COLUMNS = 4
POINTS = 120  # per curve, besides the values themselves
OUTLIER_REACH = 6.0  # interquartile ranges beyond the quartiles: further values are counted, not drawn
ROUNDING = 1e-12  # a spread below it is floating-point noise
FloatArray = NDArray[np.float64]


def bandwidth(values: Sequence[float]) -> float:
    """Return the bandwidth by Silverman's rule of thumb; 0 if all values are equal."""
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) < 2 or np.ptp(numbers) <= ROUNDING * max(1.0, float(np.abs(numbers).max())):
        return 0.0
    lower, upper = np.quantile(numbers, [0.25, 0.75])
    spread = float(numbers.std(ddof=1))
    return float(0.9 * min(spread, (upper - lower) / 1.34 or spread) * len(numbers) ** -0.2)


def curve_of(values: Sequence[float], width: float) -> tuple[FloatArray, FloatArray]:
    """Return positions and the density there: a Gaussian kernel of this width over each value."""
    numbers = np.asarray(values, dtype=np.float64)
    even = np.linspace(numbers.min() - 3 * width, numbers.max() + 3 * width, POINTS)
    # A kernel may be narrower than the distance of evenly spaced positions.
    positions = np.unique(np.concatenate([even, numbers, numbers - width, numbers + width]))
    bells = np.exp(-0.5 * ((positions[:, None] - numbers) / width) ** 2)
    return positions, bells.sum(axis=1) / (len(numbers) * width * math.sqrt(2 * math.pi))


def density(
    name: str,
    title: str,
    caption: str,
    samples: Mapping[str, Sequence[float]],
    *,
    axis: str,
    noun: str,
    unit: float = 1.0,
    format_value: Callable[[float], str] = quantities.number,
) -> Plot:
    """Draw a density curve per sample, by label, each over its own axis; `noun` names what a value describes.

    Equal values have no density and are drawn as a vertical line.
    """
    known = {label: [value for value in values if math.isfinite(value)] for label, values in samples.items()}
    if not any(known.values()):
        return Plot(name, title, f"There is no {noun} to show.")
    columns = min(COLUMNS, len(known))
    parts = []
    for index, (label, values) in enumerate(known.items()):
        row, column = divmod(index, columns)
        inside = _drawn(label, values, unit, noun, format_value)
        parts.append(element("g", *inside, transform=f"translate({column * PANEL_WIDTH:.0f} {row * PANEL_HEIGHT:.0f})"))
    rows = math.ceil(len(known) / columns)
    drawing = picture(columns * PANEL_WIDTH, rows * PANEL_HEIGHT, title, parts)
    return Plot(name, title, caption, drawing, (("line density", f"density of {noun}s over {axis}"),), wide=columns > 2)


def _drawn(
    label: str, values: Sequence[float], unit: float, noun: str, format_value: Callable[[float], str]
) -> list[Markup]:
    frame = Frame(PANEL_WIDTH, PANEL_HEIGHT, left=14, right=18, top=30, bottom=30)
    parts = [text(frame.left, 14, shortened(label, 34), class_="axis")]
    if not values:
        return [*parts, text(frame.left, frame.y_end - 30, f"no {noun}", class_="hint")]
    width = bandwidth(values)
    near = _near(values)
    positions, heights = curve_of(near, width) if width else (np.asarray(values[:1]), np.ones(1))
    x = fitted([0.0, float(positions.min()), float(positions.max())], frame.left, frame.x_end, unit)
    parts.append(x_axis(frame, x, "", 4))
    parts.append(element("path", class_="post", d=f"M{x(0.0):.1f} {frame.y_end:.1f}V{frame.top:.0f}"))
    if not width:
        return [*parts, *_spike(values, x, frame, noun, format_value)]
    top = float(heights.max())
    points = [
        f"{x(float(position)):.1f} {frame.y_end - float(height) / top * (frame.y_end - frame.top):.1f}"
        for position, height in zip(positions, heights)
    ]
    line = f"M{'L'.join(points)}"
    area = f"{line}V{frame.y_end:.1f}H{x(float(positions[0])):.1f}Z"
    middle, least, most = (format_value(float(value)) for value in np.quantile(values, [0.5, 0.0, 1.0]))
    summary = f"{label}: {quantities.count(len(values), noun)}\nmedian {middle}, from {least} to {most}"
    if len(near) < len(values):
        far = f"{len(values) - len(near)} further out"
        parts.append(text(frame.x_end, 14, far, class_="hint", text_anchor="end"))
    inside = (element("path", class_="under", d=area), element("path", class_="line density", d=line))
    return [*parts, element("g", tooltip(summary), *inside, data_cell="density")]


def _near(values: Sequence[float]) -> list[float]:
    """Return the values without extreme outliers, which would compress all others into a single line."""
    lower, upper = np.quantile(values, [0.25, 0.75])
    reach = OUTLIER_REACH * (upper - lower)
    near = [value for value in values if lower - reach <= value <= upper + reach]
    return near if bandwidth(near) else list(values)


def _spike(
    values: Sequence[float], x: Scale, frame: Frame, noun: str, format_value: Callable[[float], str]
) -> list[Markup]:
    summary = f"one {noun}: {format_value(values[0])}" if len(values) == 1 else f"all equal: {format_value(values[0])}"
    at = x(values[0])
    left = at < (frame.left + frame.x_end) / 2
    return [
        element("path", class_="line density", d=f"M{at:.1f} {frame.y_end:.1f}V{frame.top + 8:.1f}"),
        text(at + (8 if left else -8), frame.top + 18, summary, class_="hint", text_anchor=None if left else "end"),
    ]
