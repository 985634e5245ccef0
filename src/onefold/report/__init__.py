"""Results as text, as JSON and as one standalone HTML page.

    report: Report = StudyReport(summarize(study, trials, epochs))
    report.as_text()   report.as_json()   report.as_html()

`study/`, `impact/`, `kernels/` and `retraining/` each hold one report. They share `table.py` (the table model),
`text_layout.py`, `html_page.py`, `phrases.py` and the drawings in `plots/`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.report.protocol import JsonDocument, Report
    from onefold.report.study.study_report import FrontReport, StudyReport
    from onefold.report.study.summary import Summary, summarize

__all__ = ["FrontReport", "JsonDocument", "Report", "StudyReport", "Summary", "summarize"]

# Imported on first use: a retraining writes one report, in the last second of its window.
_MODULES = {
    **dict.fromkeys(("JsonDocument", "Report"), "protocol"),
    **dict.fromkeys(("Summary", "summarize"), "study.summary"),
    **dict.fromkeys(("FrontReport", "StudyReport"), "study.study_report"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
