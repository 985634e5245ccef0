"""Conversion of reported values and costs to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onefold.vocabulary.errors import WorkloadError
from onefold.vocabulary.records import Measurement, Metrics


def as_metrics(reported: Mapping[str, Any]) -> Metrics:
    """Return reported values as plain floats, also those of numpy and torch."""
    metrics: dict[str, float] = {}
    for name, value in reported.items():
        try:
            metrics[str(name)] = float(value)
        except (TypeError, ValueError):
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
