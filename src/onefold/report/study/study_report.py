"""The report of a study: text, JSON and page over one summary; and its Pareto front alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onefold.report.study.page import as_html
from onefold.report.study.plain import as_json, front_json
from onefold.report.study.summary import Summary
from onefold.report.study.text import as_text, front_text


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


@dataclass(frozen=True, slots=True)
class FrontReport:
    """The Pareto front of a study, every trial of it. A `Report`, whose page is that of the study."""

    summary: Summary

    def as_text(self) -> str:
        return front_text(self.summary)

    def as_json(self) -> dict[str, Any]:
        return front_json(self.summary)

    def as_html(self) -> str:
        return as_html(self.summary)
