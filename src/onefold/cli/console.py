"""The two streams that commands write to."""

from __future__ import annotations

import json
import sys

from rich.console import Console

from onefold.report import Report

PIPED_WIDTH = 140  # columns of a table that no terminal limits

out = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(markup=False, highlight=False, stderr=True)


def print_report(report: Report, as_json: bool = False) -> None:
    """Print a report as text, or as one line of JSON."""
    out.out(json.dumps(report.as_json()) if as_json else report.as_text())
