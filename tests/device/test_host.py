"""This machine as a device: description, calibration and its cache."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.agent import probe_program
from onefold.device import host as host_module
from onefold.device.catalog import devices, read_devices, save_device
from onefold.device.device import MAX_SPREAD, Device
from onefold.device.host import calibrate, change_of_figures, describe, host
from onefold.meter import ModelledMeter


def test_description_has_no_measured_figures() -> None:
    result = describe()
    assert result.name == "host"
    assert result.architecture == platform.machine()
    assert 1 <= result.cores <= (os.cpu_count() or 1)
    assert result.memory_bytes > 10**8
    assert all(math.isnan(figure) for figure in (result.gflops, result.bandwidth_gbps, result.overhead_us))


def test_power_agrees_with_the_modelled_meter() -> None:
    result = describe()
    assert result.power_w(1) == pytest.approx(ModelledMeter().watts_per_busy_core)
    assert result.power_w(0) == 0
    assert "modelled" in result.note


def test_calibration_measures_every_figure() -> None:
    result = calibrate(0.1)
    for figure in (result.gflops, result.bandwidth_gbps, result.overhead_us):
        assert math.isfinite(figure)
        assert figure > 0
    assert result.source == "calibrated"
    assert "measured on this machine" in result.note
    assert result.int8_gops is not None
    assert min(result.int8_gops, result.call_us) > 0
    assert {"matmul", "conv3x3-int8", "stream"} <= set(dict(result.operator_rates))


def test_calibration_says_how_well_its_passes_agree() -> None:
    result = calibrate(0.1)
    assert result.spread is not None
    agrees = result.spread <= MAX_SPREAD
    assert ("passes agree within" in result.note) == agrees
    assert ("calibrate again on a quiet machine" in result.note) == (not agrees)


def test_two_calibrations_are_compared_by_the_figure_that_differs_most() -> None:
    before = replace(describe(), gflops=100.0, overhead_us=1.0, operator_rates=(("stream", 20.0),))
    after = replace(before, gflops=103.0, operator_rates=(("stream", 15.0),))
    assert change_of_figures(before, after) == ("stream", pytest.approx(0.25))


RATES = (("matmul", 10.0),)


class TestCachedCalibration:
    @pytest.fixture
    def calibrations(self, monkeypatch: pytest.MonkeyPatch) -> list[Device]:
        """Record calibrations, with fake figures."""
        made: list[Device] = []

        def quick(seconds: float) -> Device:
            made.append(
                replace(describe(), gflops=10.0 + len(made), bandwidth_gbps=5.0, overhead_us=1.0, operator_rates=RATES)
            )
            return made[-1]

        monkeypatch.setattr(host_module, "calibrate", quick)
        return made

    def test_calibrates_once(self, tmp_path: Path, calibrations: list[Device]) -> None:
        first, second = host(tmp_path / "devices"), host(tmp_path / "devices")
        assert first == second == calibrations[0]
        assert len(calibrations) == 1
        assert read_devices(tmp_path / "devices" / "host.toml") == [first]

    @pytest.mark.parametrize("change", [{"cores": 4096}, {"architecture": "pdp11"}])
    def test_calibrates_again_for_another_machine(
        self, tmp_path: Path, calibrations: list[Device], change: dict[str, object]
    ) -> None:
        host(tmp_path)
        save_device(replace(calibrations[0], **change), tmp_path)  # type: ignore[arg-type]
        assert host(tmp_path) == calibrations[1]

    def test_calibrates_again_if_an_earlier_version_measured_fewer_figures(
        self, tmp_path: Path, calibrations: list[Device]
    ) -> None:
        host(tmp_path)
        save_device(replace(calibrations[0], operator_rates=()), tmp_path)
        assert host(tmp_path) == calibrations[1]

    def test_calibrates_again_when_the_file_is_invalid(self, tmp_path: Path, calibrations: list[Device]) -> None:
        (tmp_path / "host.toml").write_text("[host")
        assert host(tmp_path) == calibrations[0]

    def test_host_is_not_in_the_catalog(self, tmp_path: Path, calibrations: list[Device]) -> None:
        host(tmp_path)
        assert "host" not in devices(tmp_path)


class TestControlGroups:
    """Limits of control groups, in imitated files of both versions."""

    def test_version_2(self, tmp_path: Path) -> None:
        group = tmp_path / "system.slice" / "a.service"
        group.mkdir(parents=True)
        (group / "cpu.max").write_text("max 100000\n")
        (group.parent / "cpu.max").write_text("150000 100000\n")
        (group / "memory.max").write_text("500000000\n")
        own, info = tmp_path / "own", tmp_path / "meminfo"
        own.write_text("0::/system.slice/a.service\n")
        info.write_text("MemTotal:        1000000 kB\nMemFree: 1 kB\n")
        assert probe_program.core_count(tmp_path, own) == 1
        assert probe_program.memory_bytes(tmp_path, own, info) == 500_000_000

    def test_version_1(self, tmp_path: Path) -> None:
        cpu, memory = tmp_path / "cpu,cpuacct" / "box", tmp_path / "memory" / "box"
        cpu.mkdir(parents=True)
        memory.mkdir(parents=True)
        (cpu / "cpu.cfs_quota_us").write_text("100000\n")
        (cpu / "cpu.cfs_period_us").write_text("100000\n")
        (memory / "memory.limit_in_bytes").write_text("9223372036854771712\n")
        own, info = tmp_path / "own", tmp_path / "meminfo"
        own.write_text("4:memory:/box\n3:cpu,cpuacct:/box\n")
        info.write_text("MemTotal:        1000000 kB\n")
        assert probe_program.core_count(tmp_path, own) == 1
        assert probe_program.memory_bytes(tmp_path, own, info) == 1_024_000_000

    def test_groups_without_limits(self, tmp_path: Path) -> None:
        (tmp_path / "cpu.max").write_text("max 100000\n")
        own = tmp_path / "own"
        own.write_text("0::/\n")
        assert probe_program.core_count(tmp_path, own) == len(os.sched_getaffinity(0))
