"""SVG elements and paths. All content is escaped, so names given by users are safe here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

Point = tuple[float, float]


def element(tag: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """Return an element. `class_` becomes class, `text_anchor` text-anchor; attributes that are None are left out."""
    attributes_text = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _short(value))
        for name, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(content)
    if not inside:
        return Markup("<{0}{1}/>").format(Markup(tag), attributes_text)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), attributes_text, inside)


def picture(width: float, height: float, label: str, content: Iterable[str], *, rigid: bool = False) -> Markup:
    """Return a whole drawing with an accessible label. A rigid drawing scrolls instead of shrinking."""
    return element(
        "svg",
        *content,
        viewBox=f"0 0 {_short(width)} {_short(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        style=f"min-width:{width * 0.9:.0f}px" if rigid else None,
    )


def text(x: float, y: float, content: str, /, **attributes: str | float | None) -> Markup:
    """Return a line of text."""
    return element("text", escape(content), x=x, y=y, **attributes)


def polyline(points: Sequence[Point]) -> str:
    """Return the path through the points, interrupted wherever x does not increase."""
    path, before = [], float("inf")
    for x, y in points:
        path.append(f"{'L' if x > before else 'M'}{_pair(x, y)}")
        before = x
    return "".join(path)


def staircase(points: Sequence[Point]) -> str:
    """Return the step path through the points: horizontal first, then vertical."""
    path = [f"M{_pair(*points[0])}"]
    for x, y in points[1:]:
        path.append(f"H{_short(x)}V{_short(y)}")
    return "".join(path)


def ribbon(points: Sequence[Point]) -> str:
    """Return the smooth path that leaves and enters every point horizontally."""
    path, before = [f"M{_pair(*points[0])}"], points[0]
    for x, y in points[1:]:
        middle = (before[0] + x) / 2
        path.append(f"C{_pair(middle, before[1])} {_pair(middle, y)} {_pair(x, y)}")
        before = (x, y)
    return "".join(path)


def cross(x: float, y: float, size: float) -> str:
    """Return the path of a small ×."""
    across = 2 * size
    return f"M{_pair(x - size, y - size)}l{_pair(across, across)}m0 {_short(-across)}l{_pair(-across, across)}"


def shortened(name: str, length: int) -> str:
    """Return at most `length` characters of a name, with an ellipsis if some are missing."""
    return name if len(name) <= length else name[: max(1, length - 1)] + "…"


def _pair(x: float, y: float) -> str:
    return f"{_short(x)} {_short(y)}"


def _short(value: str | float) -> str:
    """Format a coordinate to a tenth of a pixel, which keeps the page small."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
