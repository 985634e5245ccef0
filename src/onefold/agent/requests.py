"""What a board is asked: the records of a request, read from JSON that anybody may have written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from onefold.agent.session_options import LEVELS, MAX_THREADS
from onefold.agent.timing_effort import TimingEffort

MAX_BATCH_SIZE = 1_000_000
MAX_RUNS = 1_000_000
MAX_SECONDS = 600.0
MAX_HANG_TIMEOUT_S = 3600.0
EXECUTIONS = ("sequential", "parallel")
WAITINGS = ("sleeping", "spinning")
SHA256 = re.compile(r"[0-9a-f]{64}")


class BadRequest(ValueError):
    """A request that cannot be understood; the text says what is wrong with it."""


@dataclass(frozen=True)
class Point:
    """A serving point, as in `onefold.vocabulary.serving`."""

    batch_size: int = 1
    threads: int = 1
    graph_level: str = "all"
    execution: str = "sequential"
    precision: str = "fp32"
    waiting: str = "sleeping"
    runtime: str = "onnxruntime"


def point_from_json(value: object) -> Point:
    """Return the serving point of a request. Raises BadRequest."""
    table = table_of(value, "point")
    _only(table, "point", {field.name for field in fields(Point)})
    return Point(
        batch_size=_integer(table, "batch_size", 1, MAX_BATCH_SIZE, 1),
        threads=_integer(table, "threads", 1, MAX_THREADS, 1),
        graph_level=_one_of(table, "graph_level", tuple(LEVELS), "all"),
        execution=_one_of(table, "execution", EXECUTIONS, "sequential"),
        precision=_text(table, "precision", "fp32"),
        waiting=_one_of(table, "waiting", WAITINGS, "sleeping"),
        runtime=_text(table, "runtime", "onnxruntime"),
    )


def effort_from_json(value: object) -> TimingEffort:
    """Return the timing effort of a request. Raises BadRequest."""
    table = table_of(value, "effort")
    _only(table, "effort", {field.name for field in fields(TimingEffort)})
    default = TimingEffort()
    return TimingEffort(
        warm_up_runs=_integer(table, "warm_up_runs", 0, MAX_RUNS, default.warm_up_runs),
        min_runs=_integer(table, "min_runs", 1, MAX_RUNS, default.min_runs),
        max_runs=_integer(table, "max_runs", 1, MAX_RUNS, default.max_runs),
        max_seconds=number(table, "max_seconds", 0.0, MAX_SECONDS, default.max_seconds),
        precision=number(table, "precision", 0.0, 1.0, default.precision),
        max_batch_s=number(table, "max_batch_s", 0.0, MAX_SECONDS, default.max_batch_s),
        idle_s=number(table, "idle_s", 0.0, 1.0, default.idle_s),
    )


def digest(table: Mapping[str, Any], field: str) -> str:
    """Return a SHA-256 of a request. Raises BadRequest."""
    value = table.get(field)
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise BadRequest(f"{field} must be a SHA-256 in hexadecimal")
    return value


def table_of(value: object, name: str) -> Mapping[str, Any]:
    """Return a JSON object. Raises BadRequest."""
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be a JSON object")
    return value


def number(table: Mapping[str, Any], field: str, least: float, most: float, default: float) -> float:
    """Return a finite number within bounds. Raises BadRequest."""
    value = table.get(field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise BadRequest(f"{field} must be a number from {least:g} to {most:g}")
    return float(value)


def _integer(table: Mapping[str, Any], field: str, least: int, most: int, default: int) -> int:
    value = table.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRequest(f"{field} must be an integer from {least} to {most}")
    return value


def _one_of(table: Mapping[str, Any], field: str, known: tuple[str, ...], default: str) -> str:
    value = table.get(field, default)
    if value not in known:
        raise BadRequest(f"{field} must be one of {', '.join(known)}")
    return str(value)


def _text(table: Mapping[str, Any], field: str, default: str) -> str:
    value = table.get(field, default)
    if not isinstance(value, str) or len(value) > 100:
        raise BadRequest(f"{field} must be a short text")
    return value


def _only(table: Mapping[str, Any], name: str, known: set[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise BadRequest(f"{name} has no field {unknown[0]!r}"[:200])
