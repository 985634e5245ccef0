"""What a compilation costs, by phase."""

from __future__ import annotations

import time

import pytest

from onefold.kernels.phase_costs import PhaseCosts
from onefold.vocabulary.kernels import CompileCost


def test_phases_add_up() -> None:
    ledger = PhaseCosts()
    started = time.perf_counter()
    for name in ("build", "run", "build"):
        with ledger.phase(name):
            time.sleep(0.01)
    passed = time.perf_counter() - started
    assert set(ledger.spent.seconds) == {"build", "run"}
    assert ledger.spent.seconds["build"] >= 0.02
    assert ledger.spent.seconds["run"] >= 0.01
    assert ledger.spent.time_s <= passed


def test_what_workers_spend_comes_on_top() -> None:
    ledger = PhaseCosts()
    with ledger.phase("build"):
        pass
    before = ledger.spent
    ledger.add("build", 2.5)
    ledger.add("run", 1.5)
    ledger.add("run", None)  # it is in the counters that are read here
    after = ledger.spent
    assert after.seconds == before.seconds
    assert after.joules["build"] - before.joules.get("build", 0.0) == pytest.approx(2.5)
    assert after.joules["run"] == pytest.approx(1.5)
    assert after.source == before.source


def test_it_goes_on_where_an_earlier_one_ended() -> None:
    ledger = PhaseCosts(CompileCost({"search": 10.0, "whole": 1.0}, {"search": 100.0}, "modelled"))
    with ledger.phase("search"):
        pass
    assert ledger.spent.seconds["search"] >= 10.0
    assert ledger.spent.seconds["whole"] == 1.0
    assert ledger.spent.joules["search"] >= 100.0
