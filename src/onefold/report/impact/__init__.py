"""What a study of impact found, as text, as JSON and as one HTML page that stands alone.

    found = findings(evidence)
    as_text(found)   as_json(found)   as_html(found)

`tables.py` writes every table once, cell by cell, and `shares.py` the importance of hyperparameters; the text and the
page only lay them out. The drawings are `report/plots/boxes.py` and `report/plots/density.py`.
"""

from onefold.report.impact.page import as_html
from onefold.report.impact.plain import as_json
from onefold.report.impact.text import as_text

__all__ = ["as_html", "as_json", "as_text"]
