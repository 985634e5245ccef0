"""How well predicted memory agreed with measured memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from onefold.vocabulary.retraining import MicroWindow


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Relative errors of predictions, as shares of what was measured, over the micro-windows that have both."""

    windows: int
    median: float
    worst: float
    worst_window: MicroWindow
    too_low: int  # micro-windows that needed more than was predicted


def prediction_error(windows: Sequence[MicroWindow]) -> PredictionError | None:
    """The errors of these micro-windows; None where no memory was measured."""
    errors = [(error, window) for window in windows if (error := error_of(window)) is not None]
    if not errors:
        return None
    worst, worst_window = max(errors, key=lambda one: abs(one[0]))
    sizes = [abs(error) for error, _ in errors]
    return PredictionError(len(errors), median(sizes), abs(worst), worst_window, sum(error < 0 for error, _ in errors))


def error_of(window: MicroWindow) -> float | None:
    """By which share more was predicted than measured; None where nothing was measured."""
    return (window.predicted_bytes - window.measured_bytes) / window.measured_bytes if window.measured_bytes else None
