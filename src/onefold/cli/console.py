"""The two streams that commands write to."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

if TYPE_CHECKING:
    from onefold.report import Report

PIPED_WIDTH = 140  # columns of a table that no terminal limits
KEPT = "\n\t"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class SafeConsole(Console):
    """A console on which no text of a study, a file or an error can move the cursor or change the terminal.

    Control characters, which begin escape sequences, and characters that reverse the direction of text are replaced.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def printable(text: str) -> str:
    """Return the text with a replacement for every character that a terminal would obey or cannot show."""
    return text if text.isascii() and text.isprintable() else "".join(map(_printable, text))


@cache
def _printable(character: str) -> str:
    if character in KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return character
    return REPLACEMENT


def _console(**options: Any) -> Console:
    return SafeConsole(markup=False, highlight=False, **options)


out = _console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = _console(stderr=True)


def print_report(report: Report, as_json: bool = False) -> None:
    """Print a report as text, or as one line of JSON."""
    out.out(json.dumps(report.as_json()) if as_json else report.as_text())
