"""Conversion of reported values and costs to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onefold.vocabulary.error_text import is_encodable
from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.records import Measurement, Metrics

MAX_NAME = 200  # characters of a metric's name


def as_metrics(reported: Mapping[str, Any]) -> Metrics:
    """Return reported values as plain floats, also those of numpy and torch.

    Raises WorkloadError for a value that is no number, and for a name that no report could show.
    """
    metrics: dict[str, float] = {}
    for key, value in reported.items():
        name = str(key)
        if not 0 < len(name) <= MAX_NAME or not is_encodable(name):
            raise WorkloadError(f"expected a name of 1 to {MAX_NAME} characters of a metric, got {name[:50]!a}")
        try:
            metrics[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise WorkloadError(f"a metric must be a number, but {name} is {value!r}") from None
    return metrics


def cost_metrics(cost: Measurement) -> Metrics:
    """Return the measured costs of training as metrics for objectives; unknown costs are left out."""
    costs = {"train_time_s": cost.time_s}
    if cost.energy.joules is not None:
        costs["energy_j"] = cost.energy.joules
    if cost.memory_bytes is not None:
        costs["memory_bytes"] = float(cost.memory_bytes)
    return costs
