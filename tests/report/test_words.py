from __future__ import annotations

import math

import pytest

from onefold import Objective, at_least, at_most
from onefold.report import words
from onefold.vocabulary.records import Energy, Grant


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (0.98345, "0.9835"),
        (-0.5, "-0.5"),
        (12.0, "12"),
        (42624.0, "42,624"),
        (42624.4, "42,624"),
        (1.23e300, "1.23e300"),
        (4.5e-300, "4.5e-300"),
        (1e-5, "1e-5"),
        (2e9, "2e9"),
        (math.inf, "—"),
        (math.nan, "—"),
    ],
)
def test_numbers(value: float, written: str) -> None:
    assert words.number(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0 s"),
        (0.0000021, "2.1 µs"),
        (0.0421, "42.1 ms"),
        (0.664, "0.66 s"),
        (9.999, "10.0 s"),
        (59.96, "60.0 s"),
        (89.96, "1 min 30 s"),
        (252, "4 min 12 s"),
        (7199.9, "120 min 00 s"),
        (12000, "3 h 20 min"),
        (259200, "3 days"),
        (math.nan, "—"),
    ],
)
def test_durations(seconds: float, written: str) -> None:
    assert words.duration(seconds) == written


def test_energies_say_where_they_come_from_and_estimates_show() -> None:
    assert words.energy(Energy(12_340.0, "rapl")) == "12.3 kJ"
    assert "measured" in words.energy_source(Energy(1.0, "rapl"))
    assert words.energy(Energy(12_340.0, "modelled")) == "≈ 12.3 kJ"
    assert "estimate" in words.energy_source(Energy(1.0, "modelled"))
    assert words.energy(Energy(None, "unavailable")) == "—"
    assert "not available" in words.energy_source(Energy(None, "unavailable"))
    assert words.energy(Energy(0.0, "nothing")) == "—"
    assert words.energy_source(Energy(1.0, "a shunt")) == "measured by a shunt"


def test_metrics_carry_the_unit_of_their_name() -> None:
    assert words.metric("latency_s", 0.0034) == "3.4 ms"
    assert words.metric("energy_j", 0.5) == "500 mJ"
    assert words.metric("memory_bytes", 3 * 2**20) == "3 MiB"
    assert words.metric("accuracy", 0.5, places=4) == "0.5000"


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ((), None),
        ((1.0, 20.0), None),
        ((0.98, 0.9834, 0.1), 4),
        ((0.0141, 2.3), 4),
        ((12.34, 99.1), 2),
        ((0.5, 0.5), 4),
        ((0.98341, 0.98342), 7),
        ((1e-9, 1.5), None),
        ((1e12, 1.5e12), None),
    ],
)
def test_columns_line_up(values: tuple[float, ...], places: int | None) -> None:
    assert words.decimals(values) == places


def test_settings_grants_counts_and_moments() -> None:
    assert [words.setting(value) for value in (True, None, "adam", 1024, 0.00312345)] == [
        "true",
        "none",
        "adam",
        "1024",
        "0.003123",
    ]
    assert words.grant(Grant(1, 1, 1 / 3)) == "1 epoch, 33 % data"
    assert words.grant(Grant(3, 9, 1.0, time_s=15.0)) == "15.0 s"
    assert words.count(1, "trial") == "1 trial"
    assert words.count(1200, "trial") == "1,200 trials"
    assert words.moment("2026-09-01T08:30:12.5+00:00") == "2026-09-01 08:30:12 UTC"
    assert words.moment("2026-09-01T08:30:12+02:00") == "2026-09-01 08:30:12 +02:00"
    assert words.moment("yesterday") == "yesterday"


def test_objectives_in_words() -> None:
    assert words.goals(Objective(maximize="accuracy")) == "highest accuracy"
    bounds = {"accuracy": at_least(0.9), "latency_s": at_most(0.03)}
    told = words.goals(Objective(minimize=("loss", "latency_s"), require=bounds))
    assert told == "lowest loss, lowest latency_s, with accuracy at least 0.9 and latency_s at most 30 ms"
    near = Objective(minimize="latency_s", require={"accuracy": at_least("best-0.01")})
    assert words.goals(near) == "lowest latency_s, with accuracy at least the best less 0.01"
    known = near.settled([{"accuracy": 0.9}])
    assert words.goals(known) == "lowest latency_s, with accuracy at least the best less 0.01 (0.89)"
