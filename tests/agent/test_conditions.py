"""What boards report in /sys: frequency, temperature, throttling and energy."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from onefold.agent import energy
from onefold.agent.conditions import read_conditions, throttling
from onefold.agent.energy import EnergySource


def write(root: Path, **files: object) -> None:
    """Write files; "__" in a name is a slash."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


CPU = "devices__system__cpu__cpu0__"


class TestConditions:
    def test_unknown_is_empty(self, tmp_path: Path) -> None:
        conditions = read_conditions(tmp_path)
        assert conditions.frequencies_ghz == ()
        assert conditions.temperature_c is None
        assert throttling(conditions, conditions) == ""

    def test_clock_and_temperature(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            **{f"{CPU}cpufreq__scaling_cur_freq": 1_500_000, f"{CPU}cpufreq__scaling_governor": "ondemand"},
            class__thermal__thermal_zone0__temp=48_000,
            class__thermal__thermal_zone1__temp=61_500,
        )
        conditions = read_conditions(tmp_path)
        assert conditions.frequencies_ghz == (1.5,)
        assert conditions.governor == "ondemand"
        assert conditions.temperature_c == 61.5

    def test_limits_are_named(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            **{
                f"{CPU}cpufreq__scaling_max_freq": 600_000,
                f"{CPU}cpufreq__cpuinfo_max_freq": 1_800_000,
                "devices__platform__soc__soc:firmware__get_throttled": "50005",
            },
            class__thermal__cooling_device0__type="cpufreq-cpu0",
            class__thermal__cooling_device0__cur_state=2,
            class__thermal__cooling_device1__type="pwm-fan",
            class__thermal__cooling_device1__cur_state=3,
        )
        assert read_conditions(tmp_path).limits == (
            "under-voltage", "throttled", "cooled by cpufreq-cpu0", "frequency limited to 0.6 of 1.8 GHz"
        )  # fmt: skip

    def test_past_throttling_of_a_raspberry_pi_does_not_count(self, tmp_path: Path) -> None:
        write(tmp_path, **{"devices__platform__soc__soc:firmware__get_throttled": "0x50000"})
        assert read_conditions(tmp_path).limits == ()

    def test_throttling_during_a_measurement_counts(self, tmp_path: Path) -> None:
        counter = f"{CPU}thermal_throttle__core_throttle_count"
        write(tmp_path, **{counter: 7})
        before = read_conditions(tmp_path)
        assert throttling(before, read_conditions(tmp_path)) == ""
        write(tmp_path, **{counter: 8})
        assert throttling(before, read_conditions(tmp_path)) == "the processor reports thermal throttling"


def joules(source: EnergySource) -> dict[str, object]:
    with source.window() as cost:
        pass
    return dict(cost()["energy"])


class TestEnergy:
    def test_without_a_counter_it_is_unavailable(self, tmp_path: Path) -> None:
        assert joules(EnergySource(tmp_path)) == {"joules": None, "source": "unavailable"}

    def test_counters_of_processor_packages_wrap(self, tmp_path: Path) -> None:
        package = "class__powercap__intel-rapl:0__"
        write(tmp_path, **{f"{package}name": "package-0", f"{package}max_energy_range_uj": 10_000_000})
        write(tmp_path, **{f"{package}energy_uj": 9_000_000})
        source = EnergySource(tmp_path)
        with source.window() as cost:
            write(tmp_path, **{f"{package}energy_uj": 1_500_000})
        assert cost()["energy"] == {"joules": pytest.approx(2.5), "source": "rapl"}

    def test_power_of_the_input_rail_is_integrated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rail = "bus__i2c__drivers__ina3221x__6-0040__iio:device0__"
        write(tmp_path, **{f"{rail}rail_name_0": "POM_5V_IN", f"{rail}in_power0_input": 5000})
        write(tmp_path, **{f"{rail}rail_name_1": "POM_5V_CPU", f"{rail}in_power1_input": 9000})
        clock = itertools.count(0.0, 2.0)
        monkeypatch.setattr(energy.time, "perf_counter", lambda: next(clock))
        assert joules(EnergySource(tmp_path)) == {"joules": pytest.approx(10.0), "source": "ina3221"}

    def test_battery_counts_while_it_discharges(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        battery = "class__power_supply__BAT0__"
        write(tmp_path, **{f"{battery}status": "Discharging", f"{battery}power_now": 4_000_000})
        clock = itertools.count(0.0, 3.0)
        monkeypatch.setattr(energy.time, "perf_counter", lambda: next(clock))
        source = EnergySource(tmp_path)
        assert joules(source) == {"joules": pytest.approx(12.0), "source": "battery"}
        write(tmp_path, **{f"{battery}status": "Charging"})
        assert joules(source)["joules"] is None
