"""Bootstrap confidence intervals.

bootstrap_interval(lambda rows: np.median(rows, axis=-1), latencies)
bootstrap_interval(lambda rows, others: rows.mean(axis=-1) - others.mean(axis=-1), arm, baseline)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onefold.impact_analysis.sample_validation import FloatArray, checked_sample
from onefold.vocabulary.errors import InputError

MIN_SAMPLE = 10  # values, below which percentile intervals are too narrow


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A statistic with its percentile interval at the confidence `level`."""

    value: float
    low: float
    high: float
    level: float
    note: str = ""


def bootstrap_interval(
    statistic: Callable[..., FloatArray],
    *samples: Sequence[float],
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> ConfidenceInterval:
    """Return a statistic of the samples with its bootstrap percentile interval.

    `statistic` takes one array per sample, of shape (resamples, values), and returns one number per row. Samples are
    resampled independently; for paired values, pass their differences.
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, but got {level}")
    if resamples < 1 or not samples:
        raise InputError(
            f"a bootstrap needs at least one resample of one sample, but got {resamples} of {len(samples)}"
        )
    checked = [checked_sample(values, "the values of a sample") for values in samples]
    value = float(_evaluate(statistic, [numbers[None] for numbers in checked])[0])
    smallest = min(len(numbers) for numbers in checked)
    note = f"only {smallest} values to resample: the interval is likely too narrow" if smallest < MIN_SAMPLE else ""
    low, high = _percentiles(statistic, checked, level, resamples, seed)
    return ConfidenceInterval(value, low, high, level, note)


def _percentiles(
    statistic: Callable[..., FloatArray], samples: list[FloatArray], level: float, resamples: int, seed: int
) -> tuple[float, float]:
    from scipy.stats import bootstrap

    if any(len(numbers) == 1 for numbers in samples):  # which scipy refuses; every resample of one value is that value
        samples = [np.repeat(numbers, 2) if len(numbers) == 1 else numbers for numbers in samples]

    def along_axis(*rows: FloatArray, axis: int) -> FloatArray:  # noqa: ARG001 - scipy passes the last one
        return (
            _evaluate(statistic, list(rows))
            if rows[0].ndim > 1
            else _evaluate(statistic, [row[None] for row in rows])[0]
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about degenerate distributions, whose interval is a point
        result: Any = bootstrap(
            samples,
            along_axis,
            n_resamples=resamples,
            confidence_level=level,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(seed),
        )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _evaluate(statistic: Callable[..., FloatArray], rows: Sequence[FloatArray]) -> FloatArray:
    numbers = np.asarray(statistic(*rows), dtype=np.float64)
    if numbers.shape != rows[0].shape[:-1]:
        raise InputError(
            f"the statistic must return one number per row, but returned the shape {numbers.shape} for "
            f"{rows[0].shape[0]} rows; compute it along the last axis: np.mean(rows, axis=-1)"
        )
    return checked_sample(numbers, "the statistic's values")
