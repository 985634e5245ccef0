"""Checks of a serving point before it is used: points are also read from folders of others."""

from __future__ import annotations

from typing import Any

from onefold.agent.session_options import LEVELS, MAX_THREADS
from onefold.agent.session_options import session_options as options_of
from onefold.vocabulary.errors import ModelError, unknown
from onefold.vocabulary.serving import ServingPoint


def session_options(point: ServingPoint) -> Any:
    """Return the `onnxruntime.SessionOptions` of a serving point; raises ModelError if no session can have them."""
    check_point(point)
    return options_of(point)


def check_point(point: ServingPoint) -> None:
    """Raise ModelError if no model can be served with the threads or the graph level of a point."""
    if not 1 <= point.threads <= MAX_THREADS:
        raise ModelError(f"a session has 1 to {MAX_THREADS} threads, not {point.threads}")
    if point.graph_level not in LEVELS:
        raise ModelError(unknown("graph level", point.graph_level, LEVELS))
