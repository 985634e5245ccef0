"""The report of compiled models.

`costs.py` adds up what candidates cost, `facts.py` states each result once and `tables.py` builds every table once; the
text and the page only lay them out. `plain.py` documents the keys of the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.report.kernels.page import as_html
from onefold.report.kernels.plain import as_json
from onefold.report.kernels.text import as_text
from onefold.report.protocol import JsonDocument
from onefold.vocabulary.kernels import CompileResult

__all__ = ["KernelReport"]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The report of models that were compiled together. A `Report`."""

    compiled: Sequence[CompileResult]

    def as_text(self) -> str:
        return "\n".join(as_text(model) for model in self.compiled)

    def as_json(self) -> JsonDocument:
        documents = [as_json(model) for model in self.compiled]
        return documents[0] if len(documents) == 1 else documents

    def as_html(self) -> str:
        return as_html(self.compiled)
