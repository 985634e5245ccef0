"""P-values corrected for multiple testing."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.impact_analysis.sample_validation import checked_sample
from onefold.vocabulary.errors import InputError


def benjamini_hochberg(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return p-values adjusted for the false discovery rate (Benjamini and Hochberg 1995).

    None stands for a test that could not be made; it stays None and does not count as a test.
    """
    from scipy.stats import false_discovery_control

    known = checked_sample([p for p in p_values if p is not None], "p-values", min_size=0)
    invalid = known[(known < 0) | (known > 1)]
    if len(invalid):
        raise InputError(f"p-values must lie between 0 and 1, but got {invalid[0]}")
    adjusted = iter(false_discovery_control(known, method="bh").tolist() if len(known) else ())
    return tuple(None if p is None else next(adjusted) for p in p_values)
