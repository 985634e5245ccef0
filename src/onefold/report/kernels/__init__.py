"""What compiling kernels came to, as text, as JSON and as one HTML page that stands alone.

    text(compiled)   as_json(compiled)   page(compiled)   page([compiled, compiled])

`costs.py` adds up what candidates cost, `facts.py` says everything once in a few words and `tables.py` writes every
table once, cell by cell; the forms only lay them out. The keys of the JSON are documented in `plain.py`. Wherever there
is an energy, its source is told.
"""

from onefold.report.kernels.page import page
from onefold.report.kernels.plain import as_json
from onefold.report.kernels.text import text

__all__ = ["as_json", "page", "text"]
