"""What a retraining came to, as text, as JSON and as one HTML page that stands alone.

    as_text(retrained)   as_json(retrained)   as_page(retrained)
    as_plans_text(plans, limits)   as_plans_json(plans, limits)      before anything is trained

`facts.py` says everything once in a few words and `tables.py` writes every table once, cell by cell; the forms only lay
them out. The keys of the JSON are documented in `plain.py`. What was predicted is called so wherever it is shown.
"""

from onefold.report.retraining.page import as_page
from onefold.report.retraining.plain import as_json, as_plans_json
from onefold.report.retraining.text import as_plans_text, as_text

__all__ = ["as_json", "as_page", "as_plans_json", "as_plans_text", "as_text"]
