"""How well a latency is known after so many runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.device.timing_effort import PRECISE, QUICK, interval, quantile

times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


@given(times)
def test_the_median_lies_in_its_interval(runs: list[float]) -> None:
    low, middle, high = interval(runs)
    assert min(runs) <= low <= middle <= high <= max(runs)
    assert {low, high} <= set(runs)
    assert middle == pytest.approx(float(np.median(runs)))


@given(times, st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_matter(runs: list[float], random: object) -> None:
    shuffled = list(runs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert interval(shuffled) == interval(runs)


@given(times, st.floats(0, 1))
def test_quantiles_are_those_of_numpy(runs: list[float], share: float) -> None:
    assert quantile(sorted(runs), share) == pytest.approx(float(np.quantile(runs, share)))


@given(times, st.floats(1e-3, 1e3))
def test_intervals_scale_with_the_times(runs: list[float], factor: float) -> None:
    assert interval([factor * run for run in runs]) == pytest.approx(tuple(factor * end for end in interval(runs)))


@pytest.mark.parametrize("count", [6, 21, 30, 60, 200])
def test_intervals_hold_the_true_median_as_often_as_they_promise(count: int) -> None:
    draws = np.random.default_rng(count).lognormal(0.0, 0.5, (2000, count))  # skewed, as times are; its median is 1
    held = [low <= 1.0 <= high for low, _, high in map(interval, draws)]
    assert np.mean(held) > 0.93


@given(st.integers(2, 40))
def test_more_runs_make_it_narrower(count: int) -> None:
    spread = [low_high[2] - low_high[0] for low_high in (interval(np.linspace(1, 2, n)) for n in (count, 16 * count))]
    assert spread[1] < spread[0] or count < 4


def test_a_careful_effort_is_more_of_everything() -> None:
    for name in ("warm_up", "least", "most", "seconds"):
        assert getattr(PRECISE, name) > getattr(QUICK, name)
    assert PRECISE.precision < QUICK.precision
