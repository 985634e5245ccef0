"""What happened in a study, as text, as JSON and as one HTML page that stands alone.

    summary = summarize(study, trials, epochs)
    as_text(summary)   as_json(summary)   as_html(summary)

`summary.py` works everything out once; the three forms only write it down, in the words of `words.py`. The keys of the
JSON are documented in `plain.py`. The drawings of the page are in `plots/`.
"""

from onefold.report.page import as_html
from onefold.report.plain import as_json
from onefold.report.summary import Summary, summarize
from onefold.report.text import as_text

__all__ = ["Summary", "as_html", "as_json", "as_text", "summarize"]
