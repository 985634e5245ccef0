"""LOESS."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.kernels.loess import fit_latencies, loess

values = st.floats(-1e3, 1e3)
latencies = st.floats(1e-6, 10.0)


def near(result: list[float]) -> object:
    return pytest.approx(result, rel=1e-6, abs=1e-6 * (1 + max(map(abs, result), default=0.0)))


@given(count=st.integers(3, 40), start=values, slope=values, span=st.floats(0.05, 1.0))
def test_a_straight_line_is_reproduced(count: int, start: float, slope: float, span: float) -> None:
    line = [start + slope * index for index in range(count)]
    assert loess(line, span) == near(line)


@given(count=st.integers(0, 40), value=latencies)
def test_a_constant_is_reproduced(count: int, value: float) -> None:
    assert loess([value] * count) == near([value] * count)


@given(known=st.lists(values, max_size=40))
def test_there_is_one_value_per_point(known: list[float]) -> None:
    assert len(loess(known)) == len(known)


@given(known=st.lists(values, max_size=40))
def test_it_is_symmetric(known: list[float]) -> None:
    assert loess(known[::-1]) == near(loess(known)[::-1])


@given(known=st.lists(values, min_size=1, max_size=30), scale=st.floats(0.1, 10), shift=values)
def test_it_scales_with_the_values(known: list[float], scale: float, shift: float) -> None:
    moved = [shift + scale * value for value in loess(known)]
    assert loess([shift + scale * candidate for candidate in known]) == pytest.approx(moved, abs=0.01)


def test_one_or_two_points_give_their_mean() -> None:
    assert loess([]) == []
    assert loess([3.0]) == [3.0]
    assert loess([3.0, 5.0]) == [4.0, 4.0]


def test_noise_is_smoothed_and_a_drop_is_followed() -> None:
    falling = np.geomspace(1.0, 0.1, 60)
    noisy = falling * np.random.default_rng(0).uniform(0.7, 1.3, 60)
    line = np.array(loess(list(noisy)))
    assert np.abs(line - falling).mean() < 0.5 * np.abs(noisy - falling).mean()
    assert line[-1] < 0.5 * line[0]


def test_distant_points_have_no_weight() -> None:
    calm = [1.0] * 40
    assert loess([*calm[:-1], 1e3])[:15] == near(calm[:15])
    assert loess([*calm[:-1], 1e3])[-1] > 10


@given(known=st.lists(latencies | st.none(), max_size=40))
def test_failures_have_no_fit_and_the_fit_is_never_below_the_minimum(known: list[float | None]) -> None:
    line = fit_latencies(known)
    assert [candidate is None for candidate in line] == [candidate is None for candidate in known]
    known_ones = [candidate for candidate in known if candidate is not None]
    assert [value for value in line if value is not None] == [
        max(value, min(known_ones)) for value in loess(known_ones)
    ]
