"""The contract of Meter as a test suite. Subclass MeterContract with a `meter` fixture."""

from __future__ import annotations

import math
from time import process_time

import pytest

from onefold.meter import Meter
from onefold.vocabulary.records import Measurement, from_json, to_json

SOURCES = ("rapl", "nvml", "rapl+nvml", "modelled", "unavailable")
WINDOWS_PER_TEST = 4  # that a replayed recording must have


def work() -> None:
    """Keep the processor busy for a moment."""
    end = process_time() + 0.005
    while process_time() < end:
        math.factorial(200)


class MeterContract:
    """The promises of `Meter`, one test each."""

    @pytest.fixture
    def meter(self) -> Meter:
        """Return a new meter."""
        raise NotImplementedError("override the `meter` fixture")

    def test_the_source_is_known(self, meter: Meter) -> None:
        assert meter.source in SOURCES

    def test_a_window_measures_the_work(self, meter: Meter) -> None:
        with meter.window() as window:
            work()
        assert window.measurement.time_s > 0
        assert window.measurement.cpu_s > 0

    def test_measurements_are_finite_and_not_negative(self, meter: Meter) -> None:
        with meter.window() as window:
            work()
        cost = window.measurement
        numbers = (cost.time_s, cost.cpu_s, cost.energy.joules, cost.memory_bytes)
        assert all(number is None or (math.isfinite(number) and number >= 0) for number in numbers)

    def test_energy_has_its_source(self, meter: Meter) -> None:
        with meter.window() as window:
            work()
        energy = window.measurement.energy
        assert energy.source in (meter.source, "unavailable")
        assert (energy.joules is None) == (energy.source == "unavailable")
        assert energy.measured == (energy.source not in ("modelled", "unavailable"))

    def test_an_open_window_shows_the_cost_so_far(self, meter: Meter) -> None:
        with meter.window() as window:
            early = window.measurement
            work()
            late = window.measurement
        assert 0 <= early.time_s <= late.time_s <= window.measurement.time_s
        assert 0 <= early.cpu_s <= late.cpu_s <= window.measurement.cpu_s

    def test_a_closed_window_does_not_change(self, meter: Meter) -> None:
        with meter.window() as window:
            work()
        before = window.measurement
        work()
        assert window.measurement == before

    def test_a_window_is_complete_even_if_the_work_fails(self, meter: Meter) -> None:
        windows = []

        def failing_work() -> None:
            with meter.window() as window:
                windows.append(window)
                work()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            failing_work()
        cost = windows[0].measurement
        assert cost.time_s > 0
        assert windows[0].measurement == cost

    def test_windows_can_be_nested(self, meter: Meter) -> None:
        with meter.window() as outer:
            with meter.window() as first:
                work()
            with meter.window() as second:
                work()
        inner = first.measurement + second.measurement
        assert outer.measurement.time_s >= max(first.measurement.time_s, second.measurement.time_s)
        if outer.measurement.memory_bytes is not None and inner.memory_bytes is not None:
            assert outer.measurement.memory_bytes >= inner.memory_bytes

    def test_measurements_can_be_added(self, meter: Meter) -> None:
        total = Measurement.nothing()
        for _ in range(WINDOWS_PER_TEST):
            with meter.window() as window:
                work()
            total += window.measurement
        assert total.energy.source in (meter.source, "unavailable")
        assert total.time_s >= window.measurement.time_s

    def test_a_measurement_survives_json(self, meter: Meter) -> None:
        with meter.window() as window:
            work()
        assert from_json(Measurement, to_json(window.measurement)) == window.measurement
