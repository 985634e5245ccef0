"""Compare the spread of two samples: the Brown-Forsythe test on logarithms.

The logarithm makes spread relative, as the scaled distributions are: an arm whose models are all twice as large has the
same spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onefold.impact_analysis.sample_validation import check_positive, checked_sample, is_constant

MIN_VALUES = 3  # per sample


@dataclass(frozen=True, slots=True)
class SpreadComparison:
    """The Brown-Forsythe test of a sample against a baseline; without enough values that vary there is none."""

    ratio: float | None  # of the mean absolute deviations from the median, of logarithms; above 1: wider than baseline
    statistic: float | None
    p: float | None

    @property
    def is_wider(self) -> bool:
        """Return whether the sample differs more than the baseline, which may not differ at all."""
        return self.ratio is None or self.ratio > 1


def compare_spread(sample: Sequence[float], baseline: Sequence[float]) -> SpreadComparison:
    """Return the two-sided test that relative spread differs; all values must be above 0."""
    from scipy.stats import levene

    groups = [
        np.log(check_positive(checked_sample(values, "the values", 0), "values")) for values in (sample, baseline)
    ]
    if min(map(len, groups)) < MIN_VALUES or all(map(is_constant, groups)):
        return SpreadComparison(None, None, None)
    spreads = [float(np.abs(group - np.median(group)).mean()) for group in groups]
    result = levene(*groups, center="median")
    return SpreadComparison(
        spreads[0] / spreads[1] if spreads[1] else None, float(result.statistic), float(result.pvalue)
    )
