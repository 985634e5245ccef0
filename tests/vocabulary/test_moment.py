"""Durations do not depend on what the clock was set to."""

from __future__ import annotations

import pytest

from onefold.processes import clock
from onefold.vocabulary.moment import Moment


@pytest.mark.parametrize("jump_s", [-1e6, 0.0, 1e6])
def test_a_jump_of_the_clock_does_not_change_durations(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    wall_s = clock.wall_clock()
    earlier = clock.now()
    monkeypatch.setattr(clock, "wall_clock", lambda: wall_s + jump_s)
    later = clock.now()
    assert later.wall_s == wall_s + jump_s
    assert 0.0 <= later.since(earlier) < 1000.0
    assert earlier.since(later) == 0.0


def test_between_boots_the_clock_of_the_machine_counts() -> None:
    assert Moment(12.0, "b", 1.0).since(Moment(10.0, "a", 900.0)) == 2.0
    assert Moment(12.0).since(Moment(10.0)) == 2.0
    assert Moment(10.0, "b", 1.0).since(Moment(12.0, "a", 1.0)) == 0.0
