"""Confidence intervals of the median, and timing efforts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.agent.timing_effort import PRECISE, QUICK, median_interval, quantile

times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


@given(times)
def test_median_is_within_its_interval(runs: list[float]) -> None:
    low, middle, high = median_interval(runs)
    assert min(runs) <= low <= middle <= high <= max(runs)
    assert {low, high} <= set(runs)
    assert middle == pytest.approx(float(np.median(runs)))


@given(times, st.randoms(use_true_random=False))
def test_order_of_runs_does_not_matter(runs: list[float], random: object) -> None:
    shuffled = list(runs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert median_interval(shuffled) == median_interval(runs)


@given(times, st.floats(0, 1))
def test_quantile_agrees_with_numpy(runs: list[float], share: float) -> None:
    assert quantile(sorted(runs), share) == pytest.approx(float(np.quantile(runs, share)))


@given(times, st.floats(1e-3, 1e3))
def test_intervals_scale_with_the_times(runs: list[float], factor: float) -> None:
    assert median_interval([factor * run for run in runs]) == pytest.approx(
        tuple(factor * end for end in median_interval(runs))
    )


@pytest.mark.parametrize("count", [6, 21, 30, 60, 200])
def test_interval_has_nominal_coverage(count: int) -> None:
    draws = np.random.default_rng(count).lognormal(0.0, 0.5, (2000, count))  # skewed, as times are; its median is 1
    held = [low <= 1.0 <= high for low, _, high in map(median_interval, draws)]
    assert np.mean(held) > 0.93


@given(st.integers(2, 40))
def test_interval_narrows_with_more_runs(count: int) -> None:
    spread = [
        low_high[2] - low_high[0] for low_high in (median_interval(np.linspace(1, 2, n)) for n in (count, 16 * count))
    ]
    assert spread[1] < spread[0] or count < 4


def test_precise_effort_exceeds_quick_effort() -> None:
    for name in ("warm_up_runs", "min_runs", "max_runs", "max_seconds"):
        assert getattr(PRECISE, name) > getattr(QUICK, name)
    assert PRECISE.precision < QUICK.precision
