"""SVG, element by element. Everything that goes in is escaped, so names given by users are safe here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

Point = tuple[float, float]


def element(tag: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """An element. `class_` is written as class, `text_anchor` as text-anchor; an attribute of None is left out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _short(value))
        for name, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(content)
    if not inside:
        return Markup("<{0}{1}/>").format(Markup(tag), written)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), written, inside)


def picture(width: float, height: float, label: str, content: Iterable[str], *, rigid: bool = False) -> Markup:
    """A whole drawing; `label` says what it shows to who cannot see it. A rigid one scrolls rather than shrinks."""
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


def text(x: float, y: float, words: str, /, **attributes: str | float | None) -> Markup:
    """A line of text."""
    return element("text", escape(words), x=x, y=y, **attributes)


def polyline(points: Sequence[Point]) -> str:
    """The path through the points. It is broken wherever x does not grow."""
    path, before = [], float("inf")
    for x, y in points:
        path.append(f"{'L' if x > before else 'M'}{_pair(x, y)}")
        before = x
    return "".join(path)


def staircase(points: Sequence[Point]) -> str:
    """The path through the points that goes sideways first, then up or down."""
    path = [f"M{_pair(*points[0])}"]
    for x, y in points[1:]:
        path.append(f"H{_short(x)}V{_short(y)}")
    return "".join(path)


def ribbon(points: Sequence[Point]) -> str:
    """The smooth path that leaves and enters every point sideways."""
    path, before = [f"M{_pair(*points[0])}"], points[0]
    for x, y in points[1:]:
        middle = (before[0] + x) / 2
        path.append(f"C{_pair(middle, before[1])} {_pair(middle, y)} {_pair(x, y)}")
        before = (x, y)
    return "".join(path)


def cross(x: float, y: float, size: float) -> str:
    """The path of a small ×."""
    across = 2 * size
    return f"M{_pair(x - size, y - size)}l{_pair(across, across)}m0 {_short(-across)}l{_pair(-across, across)}"


def shortened(words: str, length: int) -> str:
    """At most `length` characters, with an ellipsis where some are missing."""
    return words if len(words) <= length else words[: max(1, length - 1)] + "…"


def _pair(x: float, y: float) -> str:
    return f"{_short(x)} {_short(y)}"


def _short(value: str | float) -> str:
    """A tenth of a pixel is precise enough, and keeps the page small."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
