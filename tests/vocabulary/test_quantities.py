"""Sizes, times and energies as a person writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import ENERGIES, SIZES, TIMES, bytes_of, joules_of, price_of, seconds_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500MB", 500_000_000), ("2GB", 2_000_000_000), ("2 GiB", 2 * 2**30), ("1.5gb", 1_500_000_000),
        ("64kib", 65_536), ("7", 7), (" 7 B ", 7), (1_000_000, 1_000_000), (".5MB", 500_000),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600), ("90s", 90), ("1h", 3600), ("1.5 min", 90), ("2", 2), (" 3 SEC", 3), (0.5, 0.5), ("2ms", 0.002),
        ("500us", 0.0005), (" 1.5 MS", 0.0015),
    ],
)  # fmt: skip
def test_times_are_read(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "joules"),
    [("50kJ", 50_000), ("2MJ", 2e6), ("0.5kWh", 1.8e6), ("3 Wh", 10_800), ("7", 7), (" 7 J ", 7), (50_000, 50_000)],
)
def test_energies_are_read(text: str | float, joules: float) -> None:
    assert joules_of(text) == pytest.approx(joules)


@pytest.mark.parametrize(
    ("text", "price"), [("0.30/kWh", 0.3), ("0.3", 0.3), (" 12 / KWH ", 12), (".5/kwh", 0.5), (0.3, 0.3), (1, 1)]
)
def test_prices_are_read(text: str | float, price: float) -> None:
    assert price_of(text) == price


@given(some.integers(0, 10**6), some.sampled_from(sorted(SIZES)))
def test_every_unit_of_size_multiplies(number: int, unit: str) -> None:
    assert bytes_of(f"{number}{unit}") == bytes_of(f"{number} {unit.lower()}") == number * SIZES[unit]


@given(some.integers(0, 10**6), some.sampled_from(sorted(TIMES)))
def test_every_unit_of_time_multiplies(number: int, unit: str) -> None:
    assert seconds_of(f"{number}{unit}") == seconds_of(f"{number} {unit.upper()}") == number * TIMES[unit]


@given(some.integers(0, 10**6), some.sampled_from(sorted(ENERGIES)))
def test_every_unit_of_energy_multiplies(number: int, unit: str) -> None:
    assert joules_of(f"{number}{unit}") == joules_of(f"{number} {unit.lower()}") == number * ENERGIES[unit]


@pytest.mark.parametrize("text", ["", "MB", "lots", "-5MB", "5XB", "1.2.3MB", ".", "5MB 3KB", "inf", "nan", "1,5GB"])
def test_a_text_that_is_no_size_is_told(text: str) -> None:
    with pytest.raises(InputError, match=r"a size reads like 500MB or 2GB, but got "):
        bytes_of(text)


@pytest.mark.parametrize("text", ["", "m", "soon", "-5m", "5d", "1.2.3s", "1h30m", "inf", "nan", "500MB"])
def test_a_text_that_is_no_time_is_told(text: str) -> None:
    with pytest.raises(InputError, match=r"a time reads like 2ms, 90s or 10m, but got "):
        seconds_of(text)


@pytest.mark.parametrize("text", ["", "kJ", "plenty", "-5kJ", "5 calories", "1.2.3J", "inf", "nan", "5J/s", "1,5kWh"])
def test_a_text_that_is_no_energy_is_told(text: str) -> None:
    with pytest.raises(InputError, match=r"an energy reads like 50kJ, 2MJ or 0\.5kWh, but got "):
        joules_of(text)


@pytest.mark.parametrize("text", ["", "/kWh", "cheap", "-0.3/kWh", "0.3/J", "0.3 kWh", "1.2.3", "nan", "0,30/kWh"])
def test_a_text_that_is_no_price_is_told(text: str) -> None:
    with pytest.raises(InputError, match=r"a price reads like 0\.30/kWh, but got "):
        price_of(text)


def test_a_round_number_of_bytes_may_be_a_float() -> None:
    assert bytes_of(5e8) == 500_000_000  # type: ignore[arg-type]
