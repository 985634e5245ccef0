"""Bootstrap confidence intervals: by hand where all resamples can be enumerated, and by their coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.impact_analysis import bootstrap_interval
from onefold.vocabulary.errors import InputError


def mean(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows.mean(axis=-1))


def difference(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.asarray(rows.mean(axis=-1) - others.mean(axis=-1))


def percentile_interval(values: np.ndarray, resamples: int, seed: int) -> tuple[float, float]:
    """Return the percentile interval of the median with numpy alone, as version 0.1.0 computed it."""
    rng = np.random.default_rng(seed)
    medians = np.median(values[rng.integers(len(values), size=(resamples, len(values)))], axis=-1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def test_two_values_by_hand() -> None:
    # Two resamples of 0 and 4 have the mean 0, 2, 2 or 4: half of them have the mean 2.
    narrow = bootstrap_interval(mean, [0.0, 4.0], level=0.4)
    assert (narrow.low, narrow.high) == (2.0, 2.0)
    wide = bootstrap_interval(mean, [0.0, 4.0], level=0.9)
    assert (wide.value, wide.low, wide.high) == (2.0, 0.0, 4.0)


def test_the_interval_is_the_percentile_interval() -> None:
    values = np.random.default_rng(1).lognormal(size=40)
    interval = bootstrap_interval(lambda rows: np.median(rows, axis=-1), list(values), resamples=9999)
    low, high = percentile_interval(values, 9999, seed=2)
    assert interval.value == np.median(values)
    assert interval.low == pytest.approx(low, rel=0.05)
    assert interval.high == pytest.approx(high, rel=0.05)


def test_two_samples_are_resampled_independently() -> None:
    arm, baseline = np.random.default_rng(3).normal(5, 1, 60), np.random.default_rng(4).normal(3, 2, 50)
    interval = bootstrap_interval(difference, list(arm), list(baseline), resamples=5000)
    error = (arm.var() / 60 + baseline.var() / 50) ** 0.5
    assert interval.value == pytest.approx(arm.mean() - baseline.mean())
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert interval.note == ""


def test_the_coverage_is_about_the_confidence_level() -> None:
    rng = np.random.default_rng(5)
    intervals = [bootstrap_interval(mean, list(rng.normal(size=30)), resamples=300, seed=i) for i in range(200)]
    assert 0.89 < np.mean([interval.low <= 0 <= interval.high for interval in intervals]) < 0.98


@settings(max_examples=20, derandomize=True)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.integers(0, 5))
def test_the_same_seed_gives_the_same_interval_within_the_values(values: list[float], seed: int) -> None:
    interval = bootstrap_interval(mean, values, resamples=200, seed=seed)
    assert interval == bootstrap_interval(mean, values, resamples=200, seed=seed)
    slack = 1e-9
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack
    narrow = bootstrap_interval(mean, values, resamples=200, seed=seed, level=0.5)
    assert interval.low - slack <= narrow.low <= narrow.high <= interval.high + slack


def test_a_small_sample_carries_a_note() -> None:
    interval = bootstrap_interval(mean, [3.0])
    assert (interval.value, interval.low, interval.high) == (3.0, 3.0, 3.0)
    assert interval.note == "only 1 values to resample: the interval is likely too narrow"
    assert bootstrap_interval(difference, [3.0], [1.0, 2.0]).high == 2.0


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(InputError, match="level"):
        bootstrap_interval(mean, [1.0], level=1.0)
    with pytest.raises(InputError, match="at least one resample"):
        bootstrap_interval(mean)
    with pytest.raises(InputError, match="last axis"):
        bootstrap_interval(lambda rows: rows.mean(), [1.0, 2.0])
    with pytest.raises(InputError, match="values must be finite"):
        bootstrap_interval(lambda rows: mean(rows) * np.inf, [1.0, 2.0])
