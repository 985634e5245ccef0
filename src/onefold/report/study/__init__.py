"""The report of a study.

`summary.py` computes everything once; `text.py`, `plain.py` and `page.py` only lay it out. `plain.py` documents the
keys of the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onefold.report.study.page import as_html
from onefold.report.study.plain import as_json
from onefold.report.study.summary import Summary, summarize
from onefold.report.study.text import as_text

__all__ = ["StudyReport", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class StudyReport:
    """The report of a study, finished or not. A `Report`."""

    summary: Summary

    def as_text(self) -> str:
        return as_text(self.summary)

    def as_json(self) -> dict[str, Any]:
        return as_json(self.summary)

    def as_html(self) -> str:
        return as_html(self.summary)
