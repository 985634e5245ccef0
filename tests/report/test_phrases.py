"""Energies, grants and objectives in words."""

from __future__ import annotations

from onefold import Objective, at_least, at_most
from onefold.report import phrases
from onefold.vocabulary.records import Energy, Grant


def test_energies_name_their_source_and_mark_estimates() -> None:
    assert phrases.energy(Energy(12_340.0, "rapl")) == "12.3 kJ"
    assert "measured" in phrases.energy_source(Energy(1.0, "rapl"))
    assert phrases.energy(Energy(12_340.0, "modelled")) == "≈ 12.3 kJ"
    assert "estimate" in phrases.energy_source(Energy(1.0, "modelled"))
    assert phrases.energy(Energy(None, "unavailable")) == "—"
    assert "not available" in phrases.energy_source(Energy(None, "unavailable"))
    assert phrases.energy(Energy(0.0, "nothing")) == "—"
    assert phrases.energy_source(Energy(1.0, "a shunt")) == "measured by a shunt"
    assert phrases.energy_with_source(Energy(12_340.0, "modelled")) == "≈ 12.3 kJ (modelled)"
    assert phrases.energy_with_source(Energy(None, "nothing")) == "—"


def test_grants_are_described() -> None:
    assert phrases.grant(Grant(1, 1, 1 / 3)) == "1 epoch, 33 % data"
    assert phrases.grant(Grant(3, 9, 1.0, time_s=15.0)) == "15.0 s"


def test_objectives_are_described() -> None:
    assert phrases.goals(Objective(maximize="accuracy")) == "highest accuracy"
    bounds = {"accuracy": at_least(0.9), "latency_s": at_most(0.03)}
    described = phrases.goals(Objective(minimize=("loss", "latency_s"), require=bounds))
    assert described == "lowest loss, lowest latency_s, with accuracy at least 0.9 and latency_s at most 30 ms"
    near = Objective(minimize="latency_s", require={"accuracy": at_least("best-0.01")})
    assert phrases.goals(near) == "lowest latency_s, with accuracy at least the best less 0.01"
    settled = near.settled([{"accuracy": 0.9}])
    assert phrases.goals(settled) == "lowest latency_s, with accuracy at least the best less 0.01 (0.89)"
