"""How far a figure would move if other models had been drawn: intervals by drawing again from those there are.

bootstrap_interval(lambda rows: np.median(rows, axis=-1), latencies)
bootstrap_interval(lambda rows, others: rows.mean(axis=-1) - others.mean(axis=-1), arm, baseline)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onefold.impact_analysis.sample_validation import Numbers, measured
from onefold.vocabulary.errors import InputError

LITTLE = 10  # values in the smallest group below which an interval comes out too narrow


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A figure with the bounds between which it lies in a share `level` of the draws."""

    value: float
    low: float
    high: float
    level: float
    note: str = ""


def bootstrap_interval(
    statistic: Callable[..., Numbers],
    *samples: Sequence[float],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> ConfidenceInterval:
    """The figure that `statistic` makes of the samples, with its bootstrap percentile interval.

    `statistic` takes one array for each sample, whose last axis holds the values and whose first holds the draws, and
    gives one number for each draw. Each sample is drawn from by itself; of pairs of values, give the differences.
    """
    if not 0 < level < 1:
        raise InputError(f"the level must lie between 0 and 1, but got {level}")
    if draws < 1 or not samples:
        raise InputError(f"it takes at least one draw from one sample, but got {draws} from {len(samples)}")
    known = [measured(values, "the values of a sample") for values in samples]
    rng = np.random.default_rng(seed)
    drawn = [numbers[rng.integers(len(numbers), size=(draws, len(numbers)))] for numbers in known]
    value = _figures(statistic, [numbers[None] for numbers in known], 1)[0]
    low, high = np.quantile(_figures(statistic, drawn, draws), [(1 - level) / 2, (1 + level) / 2])
    few = min(len(numbers) for numbers in known)
    note = f"only {few} to draw from: the interval is likely too narrow" if few < LITTLE else ""
    return ConfidenceInterval(float(value), float(low), float(high), level, note)


def _figures(statistic: Callable[..., Numbers], rows: Sequence[Numbers], draws: int) -> Numbers:
    figures = np.asarray(statistic(*rows), dtype=np.float64)
    if figures.shape != (draws,):
        raise InputError(
            f"the statistic must give one number for each draw, but gave the shape {figures.shape} for {draws}; "
            "let it work along the last axis: np.mean(rows, axis=-1)"
        )
    return measured(figures, "the statistic's figures")
