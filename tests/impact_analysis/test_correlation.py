"""Correlations: by hand, against scipy, and where they are undefined."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onefold.impact_analysis import correlations
from onefold.vocabulary.errors import InputError

rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=12)


def test_swapping_two_of_three_halves_the_rank_correlation() -> None:
    # Ranks differ by 0, 1 and 1: 1 - 6 * 2 / (3 * 8) = 0.5; these values are their ranks, so Pearson's is the same.
    result = correlations({"size": [1, 2, 3], "latency": [1, 3, 2]}).between("latency", "size")
    assert result.spearman == pytest.approx(0.5)
    assert result.pearson == pytest.approx(0.5)


def test_rank_correlation_captures_nonlinear_monotonic_relations() -> None:
    result = correlations({"width": [1, 2, 3, 4, 5], "flops": [1, 16, 81, 256, 625]}).pairs[0]
    assert result.spearman == pytest.approx(1.0)
    assert result.spearman_p == pytest.approx(0.0)
    assert result.pearson is not None
    assert 0.8 < result.pearson < 0.95


@settings(derandomize=True)
@given(rows)
def test_coefficients_match_scipy(values: list[tuple[int, int]]) -> None:
    one, other = [float(a) for a, _ in values], [float(b) for _, b in values]
    result = correlations({"one": one, "other": other})
    pair = result.pairs[0]
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert (pair.pearson, pair.pearson_p, pair.spearman, pair.spearman_p) == (None, None, None, None)
    else:
        line, order = stats.pearsonr(one, other), stats.spearmanr(one, other)
        assert (pair.pearson, pair.pearson_p) == pytest.approx((line.statistic, line.pvalue))
        assert (pair.spearman, pair.spearman_p) == pytest.approx((order.statistic, order.pvalue))


def test_the_matrix_is_symmetric_and_empty_for_constant_properties() -> None:
    result = correlations({"a": [1, 2, 3, 4], "flat": [0.1 + 0.2, 0.3, 0.3, 0.3], "b": [4, 3, 2, 1]})
    assert result.constant == ("flat",)  # but for rounding
    expected = ((1.0, None, pytest.approx(-1.0)), (None, None, None), (pytest.approx(-1.0), None, 1.0))
    assert result.matrix("spearman") == expected
    assert result.matrix("pearson") == expected


def test_two_models_have_no_correlation() -> None:
    result = correlations({"a": [1, 2], "b": [2, 1]})
    assert result.pairs[0].pearson is None
    assert result.matrix() == ((None, None), (None, None))
    assert correlations({}).matrix() == ()


def test_unequal_columns_and_unknown_names_are_rejected() -> None:
    with pytest.raises(InputError, match="same length"):
        correlations({"a": [1, 2, 3], "b": [1, 2]})
    result = correlations({"latency": [1, 2, 3], "size": [1, 2, 3]})
    with pytest.raises(InputError, match="did you mean 'latency'"):
        result.between("latancy", "size")
    with pytest.raises(InputError, match="twice"):
        result.between("size", "size")
