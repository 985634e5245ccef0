"""Many tests at once: by hand, against scipy, and against the definitions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from onefold.impact_analysis import benjamini_hochberg, holm
from onefold.vocabulary.errors import InputError

chances = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.01, 0.04, 1.0])), min_size=1, max_size=12)


def rejected_by_holm(ps: list[float], alpha: float) -> set[int]:
    """The procedure as Holm wrote it: go up from the least, and stop at the first that is too large."""
    found: set[int] = set()
    for step, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        if ps[place] * (len(ps) - step) > alpha:
            break
        found.add(place)
    return found


def test_four_by_hand() -> None:
    ps = [0.01, 0.04, 0.03, 0.005]
    # In order: 0.005 * 4 = 0.02, 0.01 * 3 = 0.03, 0.03 * 2 = 0.06, 0.04 * 1 but not below the one before.
    assert holm(ps) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    # In order: 0.005 * 4 / 1, 0.01 * 4 / 2, 0.03 * 4 / 3, 0.04 * 4 / 4; none above the one after.
    assert benjamini_hochberg(ps) == pytest.approx((0.02, 0.04, 0.04, 0.02))


def test_a_test_that_was_not_made_does_not_count() -> None:
    assert holm([0.02, None, 0.5]) == pytest.approx((0.04, None, 0.5))
    assert benjamini_hochberg([None, 0.02]) == (None, 0.02)
    assert holm([None]) == (None,)
    assert holm([]) == benjamini_hochberg([]) == ()


@settings(derandomize=True)
@given(chances)
def test_false_discoveries_are_controlled_as_scipy_does(ps: list[float]) -> None:
    assert benjamini_hochberg(ps) == pytest.approx(tuple(false_discovery_control(ps, method="bh")))


@settings(derandomize=True)
@given(chances, st.sampled_from([0.01, 0.05, 0.2, 0.5]))
def test_holm_rejects_what_the_procedure_rejects(ps: list[float], alpha: float) -> None:
    assert {place for place, p in enumerate(holm(ps)) if p is not None and p <= alpha} == rejected_by_holm(ps, alpha)


@settings(derandomize=True)
@given(chances)
def test_corrected_values_keep_their_order_and_never_fall(ps: list[float]) -> None:
    strict, mild = holm(ps), benjamini_hochberg(ps)
    for p, by_holm, by_bh in zip(ps, strict, mild):
        assert by_holm is not None
        assert by_bh is not None
        assert p <= by_bh + 1e-15
        assert by_bh <= by_holm + 1e-15
        assert by_holm <= 1
    for adjusted in (strict, mild):
        assert sorted(range(len(ps)), key=lambda place: (adjusted[place], ps[place])) == sorted(
            range(len(ps)), key=lambda place: ps[place]
        )


def test_what_is_no_chance_is_refused() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        holm([0.5, 1.5])
    with pytest.raises(InputError, match="finite"):
        benjamini_hochberg([float("nan")])
