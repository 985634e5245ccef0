"""Intervals by drawing again: by hand where all draws can be counted, against scipy where not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onefold.impact_analysis import bootstrap_interval
from onefold.vocabulary.errors import InputError


def mean(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows.mean(axis=-1))


def gap(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.asarray(rows.mean(axis=-1) - others.mean(axis=-1))


def test_two_values_by_hand() -> None:
    # Two draws from 0 and 4 have the mean 0, 2, 2 or 4: the middle half of all draws is 2.
    assert bootstrap_interval(mean, [0.0, 4.0], level=0.4).low == 2.0
    assert bootstrap_interval(mean, [0.0, 4.0], level=0.4).high == 2.0
    wide = bootstrap_interval(mean, [0.0, 4.0], level=0.9)
    assert (wide.value, wide.low, wide.high) == (2.0, 0.0, 4.0)


def test_the_interval_is_about_that_of_scipy() -> None:
    values = np.random.default_rng(1).lognormal(size=40)
    found = bootstrap_interval(lambda rows: np.median(rows, axis=-1), list(values), draws=9999)
    other = stats.bootstrap((values,), np.median, method="percentile", rng=np.random.default_rng(2))
    assert found.value == np.median(values)
    assert found.low == pytest.approx(other.confidence_interval.low, rel=0.05)
    assert found.high == pytest.approx(other.confidence_interval.high, rel=0.05)


def test_two_samples_are_drawn_from_independently() -> None:
    one, other = np.random.default_rng(3).normal(5, 1, 60), np.random.default_rng(4).normal(3, 2, 50)
    found = bootstrap_interval(gap, list(one), list(other), draws=5000)
    error = (one.var() / 60 + other.var() / 50) ** 0.5
    assert found.value == pytest.approx(one.mean() - other.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert found.note == ""


def test_it_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    found = [bootstrap_interval(mean, list(rng.normal(size=30)), draws=400, seed=i) for i in range(300)]
    assert 0.89 < np.mean([one.low <= 0 <= one.high for one in found]) < 0.98


@settings(max_examples=30, derandomize=True)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.integers(0, 5))
def test_the_same_seed_gives_the_same_interval_within_the_values(values: list[float], seed: int) -> None:
    found = bootstrap_interval(mean, values, draws=200, seed=seed)
    assert found == bootstrap_interval(mean, values, draws=200, seed=seed)
    slack = 1e-9
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack
    narrow = bootstrap_interval(mean, values, draws=200, seed=seed, level=0.5)
    assert found.low <= narrow.low <= narrow.high <= found.high


def test_few_values_say_so() -> None:
    found = bootstrap_interval(mean, [3.0])
    assert (found.value, found.low, found.high) == (3.0, 3.0, 3.0)
    assert found.note == "only 1 to draw from: the interval is likely too narrow"


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="level"):
        bootstrap_interval(mean, [1.0], level=1.0)
    with pytest.raises(InputError, match="at least one draw"):
        bootstrap_interval(mean)
    with pytest.raises(InputError, match="last axis"):
        bootstrap_interval(lambda rows: rows.mean(), [1.0, 2.0])
    with pytest.raises(InputError, match="figures must be finite"):
        bootstrap_interval(lambda rows: mean(rows) * np.inf, [1.0, 2.0])
