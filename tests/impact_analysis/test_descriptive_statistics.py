"""One property of several models: scaled, ranked, and set beside another group's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.impact_analysis import best, best_difference, lard, relative_difference, scaled
from onefold.vocabulary.errors import InputError

quantities = st.floats(0.001, 1000.0)
samples = st.lists(quantities, min_size=1, max_size=12)


def test_values_are_scaled_by_their_least() -> None:
    assert scaled([4.0, 2.0, 3.0]) == (2.0, 1.0, 1.5)


@pytest.mark.parametrize("values", [[], [0.0, 1.0], [-1.0, 2.0], [1.0, float("nan")], [[1.0], [2.0]], ["fast"]])
def test_values_that_cannot_be_scaled_are_refused_with_the_rule(values: list) -> None:
    with pytest.raises(InputError, match="must be"):
        scaled(values)


@settings(derandomize=True)
@given(samples)
def test_the_least_becomes_one_and_the_order_stays(values: list[float]) -> None:
    found = scaled(values)
    assert min(found) == 1.0
    order = sorted(range(len(values)), key=lambda place: values[place])
    assert [found[place] for place in order] == sorted(found)


def test_the_best_come_first_and_equals_in_the_order_given() -> None:
    scores = {"d": 0.7, "a": 0.9, "c": 0.8, "b": 0.9, "e": 0.8}
    assert best(scores, 3) == ("a", "b", "c")
    assert best(scores, 3, higher_is_better=False) == ("d", "c", "e")
    assert best(scores, 10) == ("a", "b", "c", "e", "d")
    assert best({}, 10) == ()


def test_the_best_none_and_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        best({"a": 1.0}, 0)
    with pytest.raises(InputError, match="finite"):
        best({"a": float("nan")}, 1)


@settings(derandomize=True)
@given(st.dictionaries(st.integers(), st.integers(0, 5), max_size=10), st.integers(1, 12), st.booleans())
def test_nobody_left_out_is_better_than_anybody_chosen(scores: dict, k: int, higher: bool) -> None:
    chosen = best(scores, k, higher_is_better=higher)
    assert len(chosen) == min(k, len(scores))
    left = [scores[key] for key in scores if key not in chosen]
    for key in chosen:
        assert all(score <= scores[key] if higher else score >= scores[key] for score in left)


def test_the_best_of_an_arm_is_compared_with_the_best_of_the_baseline() -> None:
    found = best_difference([0.8, 0.9], [0.6, 0.75], higher_is_better=True)
    assert found.relative == pytest.approx(0.2)  # (0.9 - 0.75) / 0.75
    assert found.better
    found = best_difference([8.0, 9.0], [4.0, 5.0], higher_is_better=False)
    assert found.relative == 1.0  # (8 - 4) / 4
    assert not found.better


def test_the_best_model_may_be_the_one_with_the_best_score() -> None:
    latencies, base = [1.0, 3.0, 2.0], [2.0, 9.0]
    found = best_difference(latencies, base, higher_is_better=False, by=([0.7, 0.9, 0.8], [0.9, 0.8]))
    assert (found.arm, found.baseline, found.relative) == (3.0, 2.0, 0.5)  # those of the most accurate models
    assert not found.better
    with pytest.raises(InputError, match="as many"):
        best_difference(latencies, base, higher_is_better=False, by=([0.7], [0.9, 0.8]))


@settings(derandomize=True)
@given(samples, st.booleans())
def test_a_group_beside_itself_differs_by_nothing(values: list[float], higher: bool) -> None:
    found = best_difference(values, values, higher_is_better=higher)
    assert found.relative == 0.0
    assert not found.better


def test_the_largest_deviation_is_counted_from_the_worst() -> None:
    assert lard([2.0, 3.0, 4.0], higher_is_better=False) == 0.5  # |2 - 4| / 4
    assert lard([2.0, 3.0, 4.0], higher_is_better=True) == 1.0  # |4 - 2| / 2
    assert lard([0.0, 0.0], higher_is_better=True) == 0.0
    with pytest.raises(InputError, match="must not be 0"):
        lard([0.0, 1.0], higher_is_better=True)


@settings(derandomize=True)
@given(samples, st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_largest_deviation_has_no_unit(values: list[float], factor: float) -> None:
    for higher in (True, False):
        deviation = lard(values, higher_is_better=higher)
        assert lard([value * factor for value in values], higher_is_better=higher) == deviation
    assert 0 <= lard(values, higher_is_better=False) < 1


def test_compression_changes_each_model_by_a_share_of_what_it_was() -> None:
    assert relative_difference([1.0, 6.0, 5.0], [4.0, 4.0, 5.0]) == (-0.75, 0.5, 0.0)
    assert relative_difference([0.0], [2.0]) == (-1.0,)


def test_models_before_and_after_must_belong_together() -> None:
    with pytest.raises(InputError, match="as many"):
        relative_difference([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="above 0"):
        relative_difference([1.0, 1.0], [1.0, 0.0])
