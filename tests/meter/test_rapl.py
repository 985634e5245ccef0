"""RAPL counters, on a fake powercap tree."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from fake_hardware import RANGE_UJ, FakeMachine
from meter_contract import work

from onefold.meter import RaplMeter
from onefold.meter.periodic import PeriodicCall
from onefold.vocabulary.records import Energy


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def meter(machine: FakeMachine) -> RaplMeter:
    return RaplMeter(machine.root, stat=machine.stat)


def test_packages_are_added_and_parts_are_not_counted_twice(machine: FakeMachine, meter: RaplMeter) -> None:
    with meter.window() as window:
        work()
        machine.draw(2.0, package=0)
        machine.draw(3.0, package=1)
        (machine.root / "intel-rapl:0:0" / "energy_uj").write_text("999000000")
        (machine.root / "intel-rapl:2" / "energy_uj").write_text("999000000")
    assert window.measurement.energy == Energy(5.0, "rapl")
    assert window.measurement.energy.measured


def test_a_counter_that_wraps_is_followed(machine: FakeMachine, meter: RaplMeter) -> None:
    machine.draw(RANGE_UJ / 1e6 - 1.0)
    with meter.window() as window:
        work()
        machine.draw(1.5)
    assert window.measurement.energy.joules == pytest.approx(1.5)
    assert int(machine.counter(0).read_text()) == 500_000


def test_a_counter_may_wrap_many_times_in_a_window(machine: FakeMachine, meter: RaplMeter) -> None:
    laps, lap_j = 5, RANGE_UJ / 1e6 * 0.9
    with meter.window() as window:
        work()
        for _ in range(laps):
            machine.draw(lap_j)
            meter._read_counters()  # what the thread does now and then
    assert window.measurement.energy.joules == pytest.approx(laps * lap_j)


def test_joules_are_attributed_by_processor_time(machine: FakeMachine, meter: RaplMeter) -> None:
    with meter.window() as window:
        work()
        machine.draw(100.0)
        machine.work(50.0)
    cost = window.measurement
    # The clock of the machine counts whole ticks.
    assert cost.energy.joules == pytest.approx(100.0 * cost.cpu_s / 50.0, rel=1e-3)


def test_a_process_is_never_charged_more_than_was_drawn(machine: FakeMachine, meter: RaplMeter) -> None:
    with meter.window() as window:
        for _ in range(4):
            work()
        machine.draw(100.0)
        machine.work(0.01)  # less than our own time: the clock has not ticked lately
    assert window.measurement.energy == Energy(100.0, "rapl")


def test_an_empty_window_costs_nothing(meter: RaplMeter) -> None:
    with meter.window() as window:
        pass
    assert window.measurement.energy == Energy(0.0, "rapl")


def test_nested_windows_each_count_their_own(machine: FakeMachine, meter: RaplMeter) -> None:
    with meter.window() as outer:
        work()
        machine.draw(1.0)
        with meter.window() as inner:
            work()
            machine.draw(2.0)
        work()
        machine.draw(4.0)
    assert inner.measurement.energy == Energy(2.0, "rapl")
    assert outer.measurement.energy == Energy(7.0, "rapl")


def test_without_counters_energy_is_unavailable(tmp_path: Path) -> None:
    meter = RaplMeter(tmp_path / "nothing")
    assert meter.source == "unavailable"
    assert "no processor energy counters" in meter.reason


def test_unreadable_counters_name_the_command_that_opens_them(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = Path.read_text

    def forbidden(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", forbidden)
    meter = RaplMeter(machine.root, stat=machine.stat)
    assert meter.source == "unavailable"
    assert "sudo chmod a+r" in meter.reason
    with meter.window() as window:
        work()
    assert window.measurement.energy == Energy(None, "unavailable")


def test_malformed_counters_are_unavailable(machine: FakeMachine) -> None:
    machine.counter(0).write_text("many")
    meter = RaplMeter(machine.root, stat=machine.stat)
    assert meter.source == "unavailable"
    assert "cannot be read" in meter.reason


@pytest.mark.parametrize("gone", ["before", "inside"])
def test_a_counter_that_goes_away_is_unavailable_and_not_zero(
    machine: FakeMachine, meter: RaplMeter, gone: str
) -> None:
    if gone == "before":
        machine.counter(1).unlink()
    with meter.window() as window:
        machine.counter(1).unlink(missing_ok=True)
        meter._read_counters()
    assert window.measurement.energy == Energy(None, "unavailable")


def test_the_real_proc_stat_can_be_read(machine: FakeMachine) -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("not Linux")
    meter = RaplMeter(machine.root)
    with meter.window() as window:
        work()
        machine.draw(10.0)
    assert meter._busy_s() > 0
    assert 0 < (window.measurement.energy.joules or 0) <= 10.0


def test_a_periodic_call_repeats_while_it_is_active() -> None:
    done = Event()
    periodic = PeriodicCall(done.set, 0.001)
    with periodic.active():
        with periodic.active():
            assert done.wait(30)
        done.clear()
        assert done.wait(30)
    with periodic.active():
        done.clear()
        assert done.wait(30)
