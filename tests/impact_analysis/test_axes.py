"""Hyperparameters as axes: coordinates, and shares of cells."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.impact_analysis.axes import Axis, Categories, Range, axes_of
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.space import Choice, Float, Int, Space


def test_the_coordinate_of_a_range_is_the_share_below() -> None:
    assert Range("x", 2.0, 6.0).coordinate({"x": 3}) == 0.25
    assert Range("lr", 1e-4, 1.0, log=True).coordinate({"lr": 1e-3}) == pytest.approx(0.25)


@pytest.mark.parametrize("axis", [Range("x", 2.0, 6.0), Categories("x", ("relu", "tanh", "gelu"))])
def test_an_inactive_hyperparameter_has_no_coordinate(axis: Axis) -> None:
    assert axis.coordinate({}) is None
    rng = random.Random(0)
    points, shares = axis.cells(np.array([0.25]))
    drawn = np.array([axis.draw(rng) for _ in range(3000)])
    if isinstance(axis, Range):
        assert [(drawn < 0.25).mean(), (drawn >= 0.25).mean()] == pytest.approx(shares, abs=0.03)
    else:
        assert [(drawn == point).mean() for point in points] == pytest.approx(shares, abs=0.03)


def test_a_range_has_a_cell_between_thresholds() -> None:
    points, shares = Range("x", 0.0, 1.0).cells(np.array([-np.inf, 0.75, 0.25, 0.75, np.inf]))
    assert points.tolist() == [0.125, 0.5, 0.875]
    assert shares.tolist() == [0.25, 0.5, 0.25]


def test_categories_have_equal_shares() -> None:
    axis = Categories("act", ("relu", "tanh"))
    assert [axis.coordinate({"act": "tanh"}), axis.coordinate({"act": "relu"})] == [1.0, 0.0]
    points, shares = axis.cells(np.array([0.4]))
    assert points.tolist() == [0.0, 1.0]
    assert shares.tolist() == [0.5, 0.5]


def test_the_axes_of_a_space_follow_its_parameters() -> None:
    space = Space(
        model=dict(width=Choice(32, 8, 16), depth=Int(1, 4), act=Choice("tanh", "relu")),
        training=dict(lr=Float(1e-4, 1e-1, log=True), momentum=Float(0, 0.9, when={"act": "relu"}), epochs=10),
    )
    configs = [dict(width=8, depth=1, act="tanh", lr=1e-2, epochs=10)] * 3 + [
        dict(width=8, depth=1, act="relu", lr=1e-2, momentum=0.5, epochs=10)
    ]
    assert axes_of(configs, space) == (
        Categories("width", (8, 16, 32)),  # numbers in their order
        Range("depth", 0.5, 4.5),
        Categories("act", ("tanh", "relu")),  # words in that of the space
        Range("lr", 1e-4, 1e-1, log=True),
        Range("momentum", 0.0, 0.9),
        Categories("epochs", (10,)),
    )


def test_without_a_space_each_observed_value_is_a_category() -> None:
    configs = [dict(lr=0.1, act="tanh"), dict(lr=0.001, act="relu"), dict(lr=0.01, act="relu", nesterov=True)]
    expected = (
        Categories("lr", (0.001, 0.01, 0.1)),
        Categories("act", ("relu", "tanh")),
        Categories("nesterov", (True,)),
    )
    assert axes_of(configs) == expected
    assert set(axes_of(configs[::-1])) == set(expected)


def test_one_and_true_are_different_options() -> None:
    axis = axes_of([{"x": 1}, {"x": True}])[0]
    assert {axis.coordinate({"x": 1}), axis.coordinate({"x": True})} == {0.0, 1.0}


def test_values_outside_the_space_are_rejected() -> None:
    space = Space(width=Choice(8, 16), lr=Float(0.0, 1.0))
    width, lr = axes_of([{"width": 8, "lr": 0.5}], space)
    with pytest.raises(InputError, match="width must be one of"):
        width.coordinate({"width": 9})
    with pytest.raises(InputError, match="lr must lie between"):
        lr.coordinate({"lr": 2.0})
    with pytest.raises(InputError, match="lr must lie between"):
        lr.coordinate({"lr": "fast"})


@settings(derandomize=True)
@given(st.lists(st.floats(-3, 3), max_size=6))
def test_cells_partition_the_axis(cuts: list[float]) -> None:
    points, shares = Range("x", 0.0, 1.0).cells(np.array(cuts))
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0).all()
    inside = {cut for cut in cuts if 0 < cut < 1}
    assert len(points) == len(inside) + 1
