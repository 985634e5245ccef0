"""Quantities are parsed as people type them and formatted the same way everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from onefold.vocabulary import quantities
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import (
    ENERGIES,
    SIZES,
    TIMES,
    parse_bytes,
    parse_joules,
    parse_price,
    parse_seconds,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500MB", 500_000_000), ("2GB", 2_000_000_000), ("2 GiB", 2 * 2**30), ("1.5gb", 1_500_000_000),
        ("64kib", 65_536), ("7", 7), (" 7 B ", 7), (1_000_000, 1_000_000), (".5MB", 500_000),
    ],
)  # fmt: skip
def test_sizes_are_parsed(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600), ("90s", 90), ("1h", 3600), ("1.5 min", 90), ("2", 2), (" 3 SEC", 3), (0.5, 0.5), ("2ms", 0.002),
        ("500us", 0.0005), (" 1.5 MS", 0.0015),
    ],
)  # fmt: skip
def test_durations_are_parsed(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "joules"),
    [("50kJ", 50_000), ("2MJ", 2e6), ("0.5kWh", 1.8e6), ("3 Wh", 10_800), ("7", 7), (" 7 J ", 7), (50_000, 50_000)],
)
def test_energies_are_parsed(text: str | float, joules: float) -> None:
    assert parse_joules(text) == pytest.approx(joules)


@pytest.mark.parametrize(
    ("text", "price"), [("0.30/kWh", 0.3), ("0.3", 0.3), (" 12 / KWH ", 12), (".5/kwh", 0.5), (0.3, 0.3), (1, 1)]
)
def test_prices_are_parsed(text: str | float, price: float) -> None:
    assert parse_price(text) == price


@given(some.integers(0, 10**6), some.sampled_from(sorted(SIZES)))
def test_every_unit_of_size_multiplies(number: int, unit: str) -> None:
    assert parse_bytes(f"{number}{unit}") == parse_bytes(f"{number} {unit.lower()}") == number * SIZES[unit]


@given(some.integers(0, 10**6), some.sampled_from(sorted(TIMES)))
def test_every_unit_of_time_multiplies(number: int, unit: str) -> None:
    assert parse_seconds(f"{number}{unit}") == parse_seconds(f"{number} {unit.upper()}") == number * TIMES[unit]


@given(some.integers(0, 10**6), some.sampled_from(sorted(ENERGIES)))
def test_every_unit_of_energy_multiplies(number: int, unit: str) -> None:
    assert parse_joules(f"{number}{unit}") == parse_joules(f"{number} {unit.lower()}") == number * ENERGIES[unit]


@pytest.mark.parametrize("text", ["", "MB", "lots", "-5MB", "5XB", "1.2.3MB", ".", "5MB 3KB", "inf", "nan", "1,5GB"])
def test_text_that_is_not_a_size_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"expected a size such as 500MB or 2GB, got "):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "m", "soon", "-5m", "5y", "1.2.3s", "1h30m", "inf", "nan", "500MB"])
def test_text_that_is_not_a_duration_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"expected a duration such as 2ms, 90s or 10m, got "):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["", "kJ", "plenty", "-5kJ", "5 calories", "1.2.3J", "inf", "nan", "5J/s", "1,5kWh"])
def test_text_that_is_not_an_energy_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"expected an energy such as 50kJ, 2MJ or 0\.5kWh, got "):
        parse_joules(text)


@pytest.mark.parametrize("text", ["", "/kWh", "cheap", "-0.3/kWh", "0.3/J", "0.3 kWh", "1.2.3", "nan", "0,30/kWh"])
def test_text_that_is_not_a_price_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"expected a price such as 0\.30/kWh, got "):
        parse_price(text)


def test_an_integral_number_of_bytes_may_be_a_float() -> None:
    assert parse_bytes(5e8) == 500_000_000  # type: ignore[arg-type]


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
def test_numbers_are_formatted(value: float, written: str) -> None:
    assert quantities.number(value) == written


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
        (4000, "66 min 40 s"),
        (7199.9, "120 min 00 s"),
        (12000, "3 h 20 min"),
        (259200, "3 days"),
        (math.nan, "—"),
    ],
)
def test_durations_are_formatted(seconds: float, written: str) -> None:
    assert quantities.duration(seconds) == written


def test_metrics_are_formatted_in_the_unit_of_their_name() -> None:
    assert quantities.metric("latency_s", 0.0034) == "3.4 ms"
    assert quantities.metric("energy_j", 0.5) == "500 mJ"
    assert quantities.metric("memory_bytes", 3 * 2**20) == "3 MiB"
    assert quantities.metric("accuracy", 0.5, places=4) == "0.5000"
    assert quantities.metric("accuracy - 100 * latency_s", 0.5) == "0.5"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0.0, "less than a second"), (0.0933, "less than a second"), (1.2, "about 1 s"), (12.4, "about 12 s"),
     (89.2, "about 89 s"), (200, "about 3 min 20 s"), (7300, "about 2 h 02 min")],
)  # fmt: skip
def test_remaining_times_are_rounded(seconds: float, written: str) -> None:
    assert quantities.remaining(seconds) == written


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
def test_decimals_align_a_column(values: tuple[float, ...], places: int | None) -> None:
    assert quantities.decimals(values) == places


def test_settings_are_formatted() -> None:
    values = {"flag": True, "none": None, "optimizer": "adam", "width": 1024, "lr": 0.00312345}
    assert quantities.settings(values) == "flag=true none=none optimizer=adam width=1024 lr=0.003123"


def test_counts_carry_their_noun() -> None:
    assert quantities.count(1, "trial") == "1 trial"
    assert quantities.count(1200, "trial") == "1,200 trials"


def test_timestamps_are_formatted_to_the_second() -> None:
    assert quantities.timestamp("2026-09-01T08:30:12.5+00:00") == "2026-09-01 08:30:12 UTC"
    assert quantities.timestamp("2026-09-01T08:30:12+02:00") == "2026-09-01 08:30:12 +02:00"
    assert quantities.timestamp("yesterday") == "yesterday"


@pytest.mark.parametrize("formatted", [quantities.number, quantities.duration, quantities.joules, quantities.size])
def test_unknown_values_are_a_dash(formatted: Callable[[float | None], str]) -> None:
    assert formatted(None) == formatted(math.nan) == formatted(math.inf) == quantities.MISSING


@pytest.mark.parametrize(("text", "expected"), [("10%", 0.1), ("2 %", 0.02), ("0.1", 0.1), (0.5, 0.5)])
def test_shares_are_parsed(text: str | float, expected: float) -> None:
    assert parse_share(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["ten", "10kg", "%", "1.2.3%"])
def test_text_that_is_no_share_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"expected a share such as 10% or 0\.1"):
        parse_share(text)
