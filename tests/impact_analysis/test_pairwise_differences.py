"""Pairwise differences against a double loop and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from onefold.impact_analysis import pairwise_differences
from onefold.vocabulary.errors import InputError

models = st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=2, max_size=10)


def test_two_models_make_one_pair() -> None:
    result = pairwise_differences([1.0, 2.0], [3.0, 3.0])
    assert result.plain == (-0.5,)  # (1 - 2) / 2
    assert result.compressed == (0.0,)  # (3 - 3) / 3
    assert result.delta == (0.5,)
    assert (result.statistic, result.p) == (1.0, 1.0)  # one value against another: as far apart as can be, by chance


def test_ten_models_make_45_pairs_in_the_order_of_the_models() -> None:
    plain = [float(i) for i in range(1, 11)]
    result = pairwise_differences(plain, plain[::-1])
    assert len(result.delta) == 45
    assert result.plain[:2] == (-0.5, pytest.approx(-2 / 3))  # first with second, first with third
    assert result.compressed[0] == pytest.approx(1 / 9)  # (10 - 9) / 9


@settings(derandomize=True)
@given(models)
def test_every_pair_occurs_once(both: list[tuple[float, float]]) -> None:
    plain, compressed = [a for a, _ in both], [b for _, b in both]
    result = pairwise_differences(plain, compressed)
    pairs = [(i, j) for i in range(len(both)) for j in range(i + 1, len(both))]
    expected = [(compressed[i] - compressed[j]) / compressed[j] - (plain[i] - plain[j]) / plain[j] for i, j in pairs]
    assert result.delta == pytest.approx(expected)
    test = ks_2samp(result.plain, result.compressed)
    assert (result.statistic, result.p) == (test.statistic, test.pvalue)


@settings(derandomize=True)
@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=10), st.sampled_from([0.25, 8.0]))
def test_uniform_compression_changes_no_pair(plain: list[float], factor: float) -> None:
    result = pairwise_differences(plain, [factor * value for value in plain])
    assert set(result.delta) == {0.0}
    assert (result.statistic, result.p) == (0.0, 1.0)


def test_a_hundred_models_can_be_compared() -> None:
    rng = np.random.default_rng(0)
    result = pairwise_differences(list(rng.uniform(1, 2, 100)), list(rng.uniform(1, 9, 100)))
    assert len(result.delta) == 4950
    assert result.p == pytest.approx(0.0, abs=1e-6)


def test_one_model_makes_no_pair() -> None:
    result = pairwise_differences([1.0], [2.0])
    assert (result.delta, result.statistic, result.p) == ((), None, None)


def test_unequal_or_zero_samples_are_rejected() -> None:
    with pytest.raises(InputError, match="same length"):
        pairwise_differences([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="compressed models must be above 0"):
        pairwise_differences([1.0, 2.0], [1.0, 0.0])
