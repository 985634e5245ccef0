"""Errors of predicted memory against measured memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from onefold.vocabulary.retraining import MicroWindow


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Errors relative to the measurement, over the micro-windows that have one."""

    windows: int
    median: float
    worst: float
    worst_window: MicroWindow
    too_low: int  # micro-windows that needed more than predicted


def prediction_error(windows: Sequence[MicroWindow]) -> PredictionError | None:
    """Summarize the errors of these micro-windows; None if no memory was measured."""
    errors = [(error, window) for window in windows if (error := error_of(window)) is not None]
    if not errors:
        return None
    worst, worst_window = max(errors, key=lambda entry: abs(entry[0]))
    sizes = [abs(error) for error, _ in errors]
    return PredictionError(len(errors), median(sizes), abs(worst), worst_window, sum(error < 0 for error, _ in errors))


def error_of(window: MicroWindow) -> float | None:
    """Return (predicted - measured) / measured; None without a measurement."""
    return (window.predicted_bytes - window.measured_bytes) / window.measured_bytes if window.measured_bytes else None
