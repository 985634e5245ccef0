"""The retraining report as JSON. No number is rounded.

    format        1; incremented when a key changes its meaning
    model, device, strategy, metric, higher_is_better, limits (memory_bytes, window_s)
    before, after, gain, kept_new, why, chosen (a plan, or null)
    plans         plan (batch_size, accumulation, freeze_rate, segments, epochs, lr, optimizer), memory_bytes, update_s
                  and samples_per_s (all three predicted), gain_per_s (as last measured, or null)
    windows       number, plan, began_s, ended_s, updates, samples, loss, score, gain_per_s, merit, predicted_bytes,
                  measured_bytes, limit_bytes (at its end)
    predictions   errors of predicted memory: windows (with a measurement), median_error and worst_error (relative to
                  the measurement), too_low (micro-windows that needed more than predicted); null without any
    reactions     at_s, rule, said
    layers        name, weight_bytes, saved_bytes, forward_s, backward_s (the last three per sample)
    alpha, planning_s, planning_bytes, peak_bytes, elapsed_s, notes
    first_update_s    when the model was first changed: its weights, or its BatchNorm statistics; null if never
    reference_before, reference_after    the metric on samples of the original data; null without any
    grown         module, before, classes: the layer that has new classes; null if the classes are the given ones

Times are seconds, `began_s`, `ended_s`, `at_s` and `first_update_s` since the retraining began. A number that is not
finite is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onefold.report.json_values import finite
from onefold.report.retraining.prediction_error import PredictionError, prediction_error
from onefold.vocabulary.records import to_json
from onefold.vocabulary.retraining import PlanEstimate, RetrainingLimits, RetrainingSummary

FORMAT = 1


def as_json(retrained: RetrainingSummary) -> dict[str, Any]:
    """Return the report as values that `json.dumps(..., allow_nan=False)` accepts."""
    error = prediction_error(retrained.windows)
    predictions = None if error is None else _predictions(error)
    more = {"gain": retrained.gain, "plans": _plans(retrained.plans), "predictions": predictions}
    content: dict[str, Any] = finite({"format": FORMAT, **to_json(retrained), **more})
    return content


def as_plans_json(plans: Sequence[PlanEstimate], limits: RetrainingLimits) -> dict[str, Any]:
    """Return feasible plans before any training: format, limits and plans, as in the report."""
    content: dict[str, Any] = finite({"format": FORMAT, "limits": to_json(limits), "plans": _plans(plans)})
    return content


def _plans(plans: Sequence[PlanEstimate]) -> list[dict[str, Any]]:
    return [{**to_json(estimate), "samples_per_s": estimate.samples_per_s} for estimate in plans]


def _predictions(error: PredictionError) -> dict[str, Any]:
    errors = {"median_error": error.median, "worst_error": error.worst}
    return {"windows": error.windows, **errors, "too_low": error.too_low}
