"""The `Report` protocol."""

from __future__ import annotations

from typing import Any, Protocol

JsonDocument = dict[str, Any] | list[dict[str, Any]]


class Report(Protocol):
    """Results in three forms. Each form shows the same numbers; none of them prints or writes a file."""

    def as_text(self) -> str:
        """Return plain text for a terminal or a log, without color or control characters."""
        ...

    def as_json(self) -> JsonDocument:
        """Return unrounded values that `json.dumps(..., allow_nan=False)` accepts."""
        ...

    def as_html(self) -> str:
        """Return one standalone HTML page."""
        ...
