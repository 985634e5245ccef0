"""The report of an impact analysis.

`tables.py` builds every table once and `shares.py` the importance of hyperparameters; the text and the page only lay
them out. `plain.py` documents the keys of the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onefold.impact_analysis import Findings
from onefold.report.impact.page import as_html
from onefold.report.impact.plain import as_json
from onefold.report.impact.side_by_side import SideBySideReport
from onefold.report.impact.text import as_text

__all__ = ["ImpactReport", "SideBySideReport"]


@dataclass(frozen=True, slots=True)
class ImpactReport:
    """The report of an impact analysis. A `Report`."""

    findings: Findings

    def as_text(self) -> str:
        return as_text(self.findings)

    def as_json(self) -> dict[str, Any]:
        return as_json(self.findings)

    def as_html(self) -> str:
        return as_html(self.findings)
