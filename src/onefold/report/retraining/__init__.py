"""The report of a retraining.

`facts.py` states each result once and `tables.py` builds every table once; the text and the page only lay them out.
`plain.py` documents the keys of the JSON. Predicted values are always labeled as predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onefold.report.retraining.page import as_html
from onefold.report.retraining.plain import as_json, as_plans_json
from onefold.report.retraining.text import as_plans_text, as_text
from onefold.vocabulary.retraining import RetrainingSummary

__all__ = ["RetrainingReport", "as_plans_json", "as_plans_text"]


@dataclass(frozen=True, slots=True)
class RetrainingReport:
    """The report of a retraining. A `Report`."""

    summary: RetrainingSummary

    def as_text(self) -> str:
        return as_text(self.summary)

    def as_json(self) -> dict[str, Any]:
        return as_json(self.summary)

    def as_html(self) -> str:
        return as_html(self.summary)
