"""The Benjamini-Hochberg correction against values by hand and against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.impact_analysis import benjamini_hochberg
from onefold.vocabulary.errors import InputError

p_values = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.01, 0.04, 1.0])), min_size=1, max_size=12)


def step_up(values: list[float]) -> list[float]:
    """Return the adjusted values as Benjamini and Hochberg define them, without scipy."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    adjusted, smallest = [0.0] * len(values), 1.0
    for rank, index in reversed(list(enumerate(order, start=1))):
        smallest = min(smallest, values[index] * len(values) / rank)
        adjusted[index] = smallest
    return adjusted


def test_four_values_by_hand() -> None:
    # In order: 0.005 * 4 / 1, 0.01 * 4 / 2, 0.03 * 4 / 3, 0.04 * 4 / 4; none above the next.
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.02, 0.04, 0.04, 0.02))


def test_a_test_that_could_not_be_made_does_not_count() -> None:
    assert benjamini_hochberg([None, 0.02]) == (None, 0.02)
    assert benjamini_hochberg([0.02, None, 0.5]) == pytest.approx((0.04, None, 0.5))
    assert benjamini_hochberg([None]) == (None,)
    assert benjamini_hochberg([]) == ()


@settings(derandomize=True, max_examples=50)
@given(p_values)
def test_adjusted_values_follow_the_step_up_procedure(values: list[float]) -> None:
    adjusted = benjamini_hochberg(values)
    assert adjusted == pytest.approx(tuple(step_up(values)))
    assert all(p <= new + 1e-15 and new <= 1 for p, new in zip(values, adjusted) if new is not None)


def test_invalid_p_values_are_rejected() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        benjamini_hochberg([0.5, 1.5])
    with pytest.raises(InputError, match="finite"):
        benjamini_hochberg([float("nan")])
