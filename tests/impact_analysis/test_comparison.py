"""The U test against enumeration of all assignments, and the effect size against a double loop."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onefold.impact_analysis import compare_samples, magnitude
from onefold.impact_analysis.comparison import MAX_EXACT_SIZE
from onefold.vocabulary.errors import InputError

few_values = st.lists(st.integers(0, 4), min_size=1, max_size=9)  # many are equal
many_values = st.lists(st.floats(-100, 100), min_size=1, max_size=9)


def looped_delta(one: list[float], other: list[float]) -> float:
    return sum((a > b) - (a < b) for a in one for b in other) / (len(one) * len(other))


def counted_p(one: list[float], other: list[float]) -> float:
    """Return the exact p-value by enumeration of all assignments to groups; without ties."""
    together = [*one, *other]

    def from_the_middle(chosen: set[int]) -> float:
        above = sum(together[a] > together[b] for a in chosen for b in range(len(together)) if b not in chosen)
        return abs(above - len(one) * len(other) / 2)

    seen = from_the_middle(set(range(len(one))))
    ways = [from_the_middle(set(chosen)) >= seen for chosen in combinations(range(len(together)), len(one))]
    return sum(ways) / len(ways)


def test_a_sample_all_below_the_baseline() -> None:
    result = compare_samples([1, 2, 3], [4, 5, 6])
    assert (result.n, result.n_baseline, result.u, result.delta, result.magnitude) == (3, 3, 0.0, -1.0, "large")
    assert result.p == pytest.approx(0.1)  # 2 of the 20 ways to deal six values out are this far apart
    assert (result.method, result.note) == ("exact", "")


def test_ties_count_half() -> None:
    # 1 is below 2 and 3; each 2 is equal to 2 and below 3: none above, four below, two equal of six pairs.
    result = compare_samples([1, 2, 2], [2, 3])
    assert result.u == 1.0
    assert result.delta == pytest.approx(-4 / 6)
    assert result.method == "asymptotic"
    assert result.p == pytest.approx(stats.mannwhitneyu([1, 2, 2], [2, 3], method="asymptotic").pvalue)


@settings(derandomize=True)
@given(few_values, few_values)
def test_cliffs_delta_matches_a_double_loop_with_ties(one: list[float], other: list[float]) -> None:
    assert compare_samples(one, other).delta == looped_delta(one, other)


@settings(derandomize=True)
@given(many_values, many_values)
def test_cliffs_delta_follows_from_the_u_statistic(one: list[float], other: list[float]) -> None:
    result, turned = compare_samples(one, other), compare_samples(other, one)
    assert result.delta == looped_delta(one, other)
    assert result.delta == pytest.approx(2 * result.u / (len(one) * len(other)) - 1)
    assert result.u == stats.mannwhitneyu(one, other, method="exact").statistic
    assert (turned.p, turned.delta) == (pytest.approx(result.p), -result.delta)


@settings(derandomize=True)
@given(st.lists(st.integers(0, 1000), min_size=4, max_size=9, unique=True), st.integers(2, 7))
def test_small_samples_are_tested_exactly(values: list[float], cut: int) -> None:
    one, other = values[: min(cut, len(values) - 2)], values[min(cut, len(values) - 2) :]
    result = compare_samples(one, other)
    assert result.method == "exact"
    assert result.p == pytest.approx(counted_p(one, other))


@settings(derandomize=True)
@given(st.lists(st.integers(0, 2), max_size=4), st.lists(st.integers(0, 2), max_size=4))
def test_any_samples_can_be_compared(one: list[float], other: list[float]) -> None:
    result = compare_samples(one, other)
    assert (result.p is None) == (min(len(one), len(other)) < 2)
    assert (result.delta is None) == (not one or not other)
    assert result.p is None or 0 <= result.p <= 1
    # Whatever is missing, or means little, is explained.
    assert bool(result.note) == (len(one) < 2 or len(other) < 2 or len(set(one)) == 1 or len(set(other)) == 1)


def test_a_single_value_has_an_effect_size_but_no_test() -> None:
    result = compare_samples([3.0], [1.0, 2.0, 4.0])
    assert (result.u, result.p, result.method) == (2.0, None, None)
    assert result.delta == pytest.approx(1 / 3)  # above two, below one
    assert result.note == "no test: both samples need at least two values, but have 1 and 3"
    assert compare_samples([], [1.0, 2.0]).magnitude is None


def test_constant_samples_do_not_differ() -> None:
    result = compare_samples([0.5] * 10, [0.5] * 10)
    assert (result.u, result.p, result.delta, result.magnitude) == (50.0, 1.0, 0.0, "negligible")
    assert result.note == "all values of the sample and of the baseline are the same"
    apart = compare_samples([0.5] * 10, [0.6] * 10)
    assert (apart.delta, apart.magnitude) == (-1.0, "large")
    assert apart.p is not None
    assert apart.p < 0.001


def test_the_asymptotic_test_is_close_to_the_exact_one() -> None:
    one, other = [2.0 * i + 20 for i in range(MAX_EXACT_SIZE)], [2.0 * i + 1 for i in range(MAX_EXACT_SIZE)]
    exact, more = compare_samples(one, other), compare_samples([*one, 999.0], other)
    assert (exact.method, more.method) == ("exact", "asymptotic")
    assert exact.p == pytest.approx(stats.mannwhitneyu(one, other, method="asymptotic").pvalue, abs=0.002)


def test_a_significant_difference_of_ten_and_ten_is_always_large() -> None:
    def beside(pairs_above: int) -> tuple[float, str]:
        # Each value of the sample is above two of the baseline, some above three.
        threes = pairs_above - 20
        sample = [(1.5 if i >= threes else 2.5) + i / 100 for i in range(10)]
        result = compare_samples(sample, list(range(10)))
        assert result.u == pairs_above
        return result.p or 0.0, result.magnitude or ""

    # The table of critical values has 23 for ten and ten, two-sided at 5 %: delta is 1 - 2 * 23 / 100 = 0.54 or more.
    assert beside(23)[0] < 0.05 < beside(24)[0]
    assert beside(23)[1] == "large"


@pytest.mark.parametrize(
    ("delta", "word"),
    [
        (0.0, "negligible"),
        (0.146, "negligible"),
        (0.147, "small"),
        (-0.329, "small"),
        (0.33, "medium"),
        (-0.473, "medium"),
        (-0.474, "large"),
        (1.0, "large"),
    ],
)
def test_magnitude_labels_start_at_their_thresholds(delta: float, word: str) -> None:
    assert magnitude(delta) == word


def test_invalid_values_are_rejected() -> None:
    with pytest.raises(InputError, match="between -1 and 1"):
        magnitude(1.5)
    with pytest.raises(InputError, match="finite"):
        compare_samples([1.0, float("inf")], [1.0, 2.0])
