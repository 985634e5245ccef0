"""Results as text, as JSON and as one standalone HTML page.

    report: Report = StudyReport(summarize(study, trials, epochs))
    report.as_text()   report.as_json()   report.as_html()

`study/`, `impact/`, `kernels/` and `retraining/` each hold one report. They share `table.py` (the table model),
`text_layout.py`, `html_page.py`, `phrases.py` and the drawings in `plots/`.
"""

from onefold.report.protocol import JsonDocument, Report
from onefold.report.study import StudyReport, Summary, summarize

__all__ = ["JsonDocument", "Report", "StudyReport", "Summary", "summarize"]
