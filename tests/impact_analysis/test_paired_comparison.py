"""Wilcoxon signed-rank test and paired Cliff's delta against scipy and against all combinations of signs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onefold.impact_analysis import compare_pairs
from onefold.impact_analysis.paired_comparison import smallest_p
from onefold.vocabulary.errors import InputError


@pytest.mark.parametrize("n", [3, 8, 14, 40])
def test_without_ties_it_is_the_exact_test_of_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    one, other = rng.uniform(1, 2, n), rng.uniform(1, 2, n)
    result = compare_pairs(one, other)
    expected = stats.wilcoxon(np.log(one) - np.log(other), method="exact")
    assert result.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert result.w is not None
    assert min(result.w, n * (n + 1) / 2 - result.w) == pytest.approx(expected.statistic)
    assert result.delta == pytest.approx(np.sign(one - other).mean())


@settings(derandomize=True, max_examples=40)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=10))
def test_with_ties_it_counts_all_signs(steps: list[int]) -> None:
    result = compare_pairs([2.0**step for step in steps], [1.0] * len(steps))
    differences = np.array([step for step in steps if step])
    assert (result.n, result.differing) == (len(steps), len(differences))
    if not len(differences):
        assert (result.p, result.delta, result.note) == (None, 0.0, "no pair differs")
        return
    ranks = stats.rankdata(abs(differences))
    sums = np.array(list(product((-1, 1), repeat=len(ranks)))) @ ranks
    assert result.p == pytest.approx((abs(sums) >= abs(ranks @ np.sign(differences)) - 1e-9).mean())
    assert result.delta == pytest.approx(np.sign(steps).mean())


def test_shared_variation_does_not_hide_a_small_effect() -> None:
    base = np.geomspace(1, 100, 10)
    result = compare_pairs(base * 1.01, base)
    assert result.p == smallest_p(10) == 2 / 1024
    assert (result.delta, result.magnitude) == (1.0, "large")
    assert stats.mannwhitneyu(base * 1.01, base).pvalue > 0.7


def test_equal_ratios_are_ties_despite_rounding() -> None:
    base = np.array([0.1, 0.3, 0.7, 1.1])
    assert compare_pairs(base * 3, base).p == 2 / 16


def test_without_pairs_there_is_no_test() -> None:
    result = compare_pairs([], [])
    assert (result.n, result.p, result.delta, result.note) == (0, None, None, "no test: no pair was measured")


def test_invalid_pairs_are_rejected() -> None:
    with pytest.raises(InputError, match="same length"):
        compare_pairs([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="above 0"):
        compare_pairs([1.0, 0.0], [1.0, 1.0])


def test_differences_within_the_repeatability_are_ties() -> None:
    sample, counterparts = [1.02, 1.03, 0.99, 1.5, 1.4], [1.0] * 5
    result = compare_pairs(sample, counterparts, repeatability_limit=0.05)
    assert (result.n, result.differing, result.delta) == (5, 2, 0.4)
    assert result.p == compare_pairs([1.5, 1.4], [1.0, 1.0]).p
    assert compare_pairs(sample, counterparts).differing == 5
