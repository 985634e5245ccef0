"""Descriptive statistics of one property."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.impact_analysis import best_difference, lard, relative_difference, scaled
from onefold.vocabulary.errors import InputError

quantities = st.floats(0.001, 1000.0)
samples = st.lists(quantities, min_size=1, max_size=12)


def test_values_are_scaled_by_the_smallest() -> None:
    assert scaled([4.0, 2.0, 3.0]) == (2.0, 1.0, 1.5)


@pytest.mark.parametrize("values", [[], [0.0, 1.0], [-1.0, 2.0], [1.0, float("nan")], [[1.0], [2.0]], ["fast"]])
def test_values_that_cannot_be_scaled_are_rejected(values: list) -> None:
    with pytest.raises(InputError, match="must"):
        scaled(values)


@settings(derandomize=True)
@given(samples)
def test_scaling_preserves_the_order(values: list[float]) -> None:
    result = scaled(values)
    assert min(result) == 1.0
    order = sorted(range(len(values)), key=lambda place: values[place])
    assert [result[index] for index in order] == sorted(result)


def test_the_best_of_an_arm_is_compared_with_the_best_of_the_baseline() -> None:
    result = best_difference([0.8, 0.9], [0.6, 0.75], higher_is_better=True)
    assert result.relative == pytest.approx(0.2)  # (0.9 - 0.75) / 0.75
    assert result.better
    result = best_difference([8.0, 9.0], [4.0, 5.0], higher_is_better=False)
    assert result.relative == 1.0  # (8 - 4) / 4
    assert not result.better


def test_the_best_model_can_be_chosen_by_another_score() -> None:
    latencies, base = [1.0, 3.0, 2.0], [2.0, 9.0]
    result = best_difference(latencies, base, higher_is_better=False, by=([0.7, 0.9, 0.8], [0.9, 0.8]))
    assert (result.arm, result.baseline, result.relative) == (3.0, 2.0, 0.5)  # those of the most accurate models
    assert not result.better
    with pytest.raises(InputError, match="same length"):
        best_difference(latencies, base, higher_is_better=False, by=([0.7], [0.9, 0.8]))


@settings(derandomize=True)
@given(samples, st.booleans())
def test_a_group_does_not_differ_from_itself(values: list[float], higher: bool) -> None:
    result = best_difference(values, values, higher_is_better=higher)
    assert result.relative == 0.0
    assert not result.better


def test_the_largest_deviation_is_relative_to_the_worst() -> None:
    assert lard([2.0, 3.0, 4.0], higher_is_better=False) == 0.5  # |2 - 4| / 4
    assert lard([2.0, 3.0, 4.0], higher_is_better=True) == 1.0  # |4 - 2| / 2
    assert lard([0.0, 0.0], higher_is_better=True) == 0.0
    with pytest.raises(InputError, match="must not be 0"):
        lard([0.0, 1.0], higher_is_better=True)


@settings(derandomize=True)
@given(samples, st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_largest_deviation_is_dimensionless(values: list[float], factor: float) -> None:
    for higher in (True, False):
        deviation = lard(values, higher_is_better=higher)
        assert lard([value * factor for value in values], higher_is_better=higher) == deviation
    assert 0 <= lard(values, higher_is_better=False) < 1


def test_the_change_by_compression_is_relative_to_the_plain_model() -> None:
    assert relative_difference([1.0, 6.0, 5.0], [4.0, 4.0, 5.0]) == (-0.75, 0.5, 0.0)
    assert relative_difference([0.0], [2.0]) == (-1.0,)


def test_unequal_or_nonpositive_samples_are_rejected() -> None:
    with pytest.raises(InputError, match="same length"):
        relative_difference([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="above 0"):
        relative_difference([1.0, 1.0], [1.0, 0.0])
