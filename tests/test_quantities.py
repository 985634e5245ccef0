"""Sizes and times as a person writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from onefold.errors import InputError
from onefold.quantities import SIZES, TIMES, bytes_of, seconds_of


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
    [("10m", 600), ("90s", 90), ("1h", 3600), ("1.5 min", 90), ("2", 2), (" 3 SEC", 3), (0.5, 0.5)],
)
def test_times_are_read(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == seconds


@given(some.integers(0, 10**6), some.sampled_from(sorted(SIZES)))
def test_every_unit_of_size_multiplies(number: int, unit: str) -> None:
    assert bytes_of(f"{number}{unit}") == bytes_of(f"{number} {unit.lower()}") == number * SIZES[unit]


@given(some.integers(0, 10**6), some.sampled_from(sorted(TIMES)))
def test_every_unit_of_time_multiplies(number: int, unit: str) -> None:
    assert seconds_of(f"{number}{unit}") == seconds_of(f"{number} {unit.upper()}") == number * TIMES[unit]


@pytest.mark.parametrize("text", ["", "MB", "lots", "-5MB", "5XB", "1.2.3MB", ".", "5MB 3KB", "inf", "nan", "1,5GB"])
def test_a_text_that_is_no_size_is_told(text: str) -> None:
    with pytest.raises(InputError, match=r"a size reads like 500MB or 2GB, but got "):
        bytes_of(text)


@pytest.mark.parametrize("text", ["", "m", "soon", "-5m", "5d", "1.2.3s", "1h30m", "inf", "nan", "500MB"])
def test_a_text_that_is_no_time_is_told(text: str) -> None:
    with pytest.raises(InputError, match=r"a time reads like 10m, 90s or 1h, but got "):
        seconds_of(text)


def test_a_round_number_of_bytes_may_be_a_float() -> None:
    assert bytes_of(5e8) == 500_000_000  # type: ignore[arg-type]
