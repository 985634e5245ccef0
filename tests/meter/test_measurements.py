"""Sums of measurements."""

from __future__ import annotations

from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from onefold.vocabulary.records import Energy, Measurement

amounts = st.floats(0, 1e9)
energies = st.one_of(
    st.just(Energy(None, "unavailable")),
    st.builds(Energy, amounts, st.just("modelled")),
    st.builds(Energy, amounts, st.just("rapl")),
)
measurements = st.builds(Measurement, amounts, amounts, energies, st.none() | st.integers(0, 2**50))


def alike(first: Measurement, second: Measurement) -> bool:
    """Return whether two measurements are equal up to rounding."""
    joules = (first.energy.joules, second.energy.joules)
    return (
        isclose(first.time_s, second.time_s)
        and isclose(first.cpu_s, second.cpu_s)
        and first.memory_bytes == second.memory_bytes
        and first.energy.source == second.energy.source
        and (joules == (None, None) or (None not in joules and isclose(*joules)))  # type: ignore[arg-type]
    )


@given(measurements)
def test_nothing_is_the_neutral_element(first: Measurement) -> None:
    assert first + Measurement.nothing() == first == Measurement.nothing() + first
    assert Measurement.nothing() + Measurement.nothing() == Measurement.nothing()


@given(measurements, measurements)
def test_addition_is_commutative(first: Measurement, second: Measurement) -> None:
    assert first + second == second + first


@given(measurements, measurements, measurements)
def test_addition_is_associative(first: Measurement, second: Measurement, third: Measurement) -> None:
    assert alike((first + second) + third, first + (second + third))


@given(st.lists(measurements, min_size=1))
def test_a_sum_is_measured_only_if_all_parts_are(parts: list[Measurement]) -> None:
    total = sum(parts, Measurement.nothing())
    assert total.energy.measured == all(part.energy.measured for part in parts)
    assert (total.energy.joules is None) == any(part.energy.joules is None for part in parts)


@given(st.lists(measurements, min_size=1))
def test_a_sum_is_no_smaller_than_its_parts(parts: list[Measurement]) -> None:
    total = sum(parts, Measurement.nothing())
    assert all(total.time_s >= part.time_s and total.cpu_s >= part.cpu_s for part in parts)
    peaks = [part.memory_bytes for part in parts if part.memory_bytes is not None]
    assert total.memory_bytes == max(peaks, default=None)
