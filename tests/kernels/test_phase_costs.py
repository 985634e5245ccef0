"""Time and energy by phase."""

from __future__ import annotations

import time

import pytest

from onefold.kernels.phase_costs import PhaseCosts
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import CompileCost


def test_phases_add_up() -> None:
    costs = PhaseCosts()
    started = time.perf_counter()
    for name in ("build", "run", "build"):
        with costs.phase(name):
            time.sleep(0.01)
    passed = time.perf_counter() - started
    assert set(costs.total.seconds) == {"build", "run"}
    assert costs.total.seconds["build"] >= 0.02
    assert costs.total.seconds["run"] >= 0.01
    assert costs.total.time_s <= passed


def test_a_phase_that_fails_has_its_cost() -> None:
    costs = PhaseCosts()

    def fail() -> None:
        time.sleep(0.01)
        raise ModelError("no")

    with pytest.raises(ModelError), costs.phase("whole"):
        fail()
    assert costs.total.seconds["whole"] >= 0.01


def test_the_energy_of_workers_is_added() -> None:
    costs = PhaseCosts()
    with costs.phase("build"):
        pass
    before = costs.total
    costs.add("build", 2.5)
    costs.add("run", 1.5)
    costs.add("run", None)  # included in the machine's counters
    after = costs.total
    assert after.seconds == before.seconds
    assert after.joules["build"] - before.joules.get("build", 0.0) == pytest.approx(2.5)
    assert after.joules["run"] == pytest.approx(1.5)
    assert after.source == before.source


def test_costs_continue_from_an_earlier_run() -> None:
    costs = PhaseCosts(CompileCost({"search": 10.0, "whole": 1.0}, {"search": 100.0}, "modelled"))
    with costs.phase("search"):
        pass
    assert costs.total.seconds["search"] >= 10.0
    assert costs.total.seconds["whole"] == 1.0
    assert costs.total.joules["search"] >= 100.0
