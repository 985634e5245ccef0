"""The paper of a plot: its margins, its grid and its two axes."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from onefold.report.plots.scale import Scale
from onefold.report.plots.svg import element, text

LETTER = 6.4  # the width of a small letter, on average and not too narrow


@dataclass(frozen=True, slots=True)
class Frame:
    """The area that the data may use, inside a drawing of `width` by `height`."""

    width: float
    height: float
    left: float = 44
    right: float = 64
    top: float = 34
    bottom: float = 40

    @property
    def x_end(self) -> float:
        """The right edge of the data."""
        return self.width - self.right

    @property
    def y_end(self) -> float:
        """The lower edge of the data."""
        return self.height - self.bottom


def left_margin(scale: Scale) -> float:
    """The room that the labels of an upright scale need."""
    return max(30.0, max((len(label) for _, label in scale.ticks()), default=0) * LETTER + 14)


def upright(frame: Frame, scale: Scale, title: str, hint: str = "") -> Markup:
    """The y axis: lines across the paper, labels on the left, its title on top."""
    parts = []
    for y, label in scale.ticks():
        parts.append(element("path", class_="grid", d=f"M{frame.left:.0f} {y:.1f}H{frame.x_end:.0f}"))
        parts.append(text(frame.left - 8, y + 4, label, class_="tick", text_anchor="end"))
    name = element("tspan", Markup.escape(title), class_="axis")
    more = element("tspan", Markup.escape(f"  {hint}"), class_="hint") if hint else Markup("")
    parts.append(element("text", name, more, x=0, y=14))
    return Markup("").join(parts)


def level(frame: Frame, scale: Scale, title: str, wanted: int = 6) -> Markup:
    """The x axis: a base line with labels below it, its title at the right end."""
    base = frame.y_end
    parts = [element("path", class_="base", d=f"M{frame.left:.0f} {base:.1f}H{frame.x_end:.0f}")]
    for x, label in scale.ticks(wanted):
        parts.append(element("path", class_="base", d=f"M{x:.1f} {base:.1f}v4"))
        parts.append(text(x, base + 18, label, class_="tick", text_anchor="middle"))
    parts.append(text(frame.x_end, base + 35, title, class_="axis", text_anchor="end"))
    return Markup("").join(parts)
