"""The Brown-Forsythe test against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from onefold.impact_analysis import compare_spread


def test_it_is_the_brown_forsythe_test_of_logarithms() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = rng.lognormal(0, 1, 10), rng.lognormal(5, 0.1, 10)
    result, expected = compare_spread(wide, narrow), stats.levene(np.log(wide), np.log(narrow), center="median")
    assert (result.p, result.statistic) == (pytest.approx(expected.pvalue), pytest.approx(expected.statistic))
    assert result.p is not None
    assert result.p < 0.01
    assert result.ratio is not None
    assert result.ratio > 5
    assert (result.is_wider, compare_spread(narrow, wide).is_wider) == (True, False)
    assert compare_spread(narrow * 1000, narrow).p == pytest.approx(1.0)  # the same spread at another scale


def test_a_constant_sample_has_no_spread() -> None:
    result = compare_spread([1.0, 2.0, 4.0, 8.0], [3.0] * 4)
    assert result.p is not None
    assert result.ratio is None
    assert compare_spread([2.0] * 4, [3.0] * 4).p is None


def test_few_values_are_not_tested() -> None:
    assert compare_spread([1.0, 2.0], [1.0, 3.0, 5.0]).p is None
    assert compare_spread([], [1.0, 3.0, 5.0]).p is None
