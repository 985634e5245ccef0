"""The margins, the grid and the axes of a plot."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from onefold.report.plots.scale import Scale
from onefold.report.plots.svg import element, text

LETTER = 6.4  # pixels per character of small text, rounded up


@dataclass(frozen=True, slots=True)
class Frame:
    """The data area inside a drawing of `width` by `height` pixels."""

    width: float
    height: float
    left: float = 44
    right: float = 64
    top: float = 34
    bottom: float = 40

    @property
    def x_end(self) -> float:
        """Return the right edge of the data area."""
        return self.width - self.right

    @property
    def y_end(self) -> float:
        """Return the lower edge of the data area."""
        return self.height - self.bottom


def left_margin(scale: Scale) -> float:
    """Return the width that the labels of a y axis need."""
    return max(30.0, max((len(label) for _, label in scale.ticks()), default=0) * LETTER + 14)


def y_axis(frame: Frame, scale: Scale, title: str, hint: str = "") -> Markup:
    """Draw the y axis: grid lines, labels on the left, the title on top."""
    parts = []
    for y, label in scale.ticks():
        parts.append(element("path", class_="grid", d=f"M{frame.left:.0f} {y:.1f}H{frame.x_end:.0f}"))
        parts.append(text(frame.left - 8, y + 4, label, class_="tick", text_anchor="end"))
    name = element("tspan", Markup.escape(title), class_="axis")
    more = element("tspan", Markup.escape(f"  {hint}"), class_="hint") if hint else Markup("")
    parts.append(element("text", name, more, x=0, y=14))
    return Markup("").join(parts)


def x_axis(frame: Frame, scale: Scale, title: str, wanted: int = 6) -> Markup:
    """Draw the x axis: a base line with labels below it, the title at the right end."""
    base = frame.y_end
    parts = [element("path", class_="base", d=f"M{frame.left:.0f} {base:.1f}H{frame.x_end:.0f}")]
    for x, label in scale.ticks(wanted):
        parts.append(element("path", class_="base", d=f"M{x:.1f} {base:.1f}v4"))
        parts.append(text(x, base + 18, label, class_="tick", text_anchor="middle"))
    parts.append(text(frame.x_end, base + 35, title, class_="axis", text_anchor="end"))
    return Markup("").join(parts)
