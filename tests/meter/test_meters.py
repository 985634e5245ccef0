"""The contract of every meter, and the choice of the best available one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_hardware import FakeMachine, FakeNvml
from meter_contract import WINDOWS_PER_TEST, MeterContract, work
from replayed_meter import RecordingMeter, ReplayMeter

from onefold import meter as meters
from onefold.meter import (
    ClockMeter,
    CombinedMeter,
    Meter,
    ModelledMeter,
    NvmlMeter,
    RaplMeter,
    choose,
)
from onefold.vocabulary.errors import MissingExtra
from onefold.vocabulary.records import Energy


def rapl(folder: Path) -> RaplMeter:
    machine = FakeMachine(folder)
    return RaplMeter(machine.root, stat=machine.stat)


def replay(folder: Path) -> ReplayMeter:
    recording = RecordingMeter(ModelledMeter(), folder / "recording.jsonl")
    with recording.window():
        for _ in range(WINDOWS_PER_TEST):
            with recording.window():
                work()
    return ReplayMeter(folder / "recording.jsonl")


KINDS: dict[str, Callable[[Path], Meter]] = {
    "clock": lambda _: ClockMeter(),
    "modelled": lambda _: ModelledMeter(),
    "rapl": rapl,
    "rapl without counters": lambda folder: RaplMeter(folder),
    "nvml": lambda _: NvmlMeter(nvml=FakeNvml()),
    "nvml without driver": lambda _: NvmlMeter(nvml=FakeNvml(driver=False)),
    "rapl+nvml": lambda folder: CombinedMeter(rapl(folder), NvmlMeter(nvml=FakeNvml())),
    "recording": lambda folder: RecordingMeter(ModelledMeter(), folder / "recording.jsonl"),
    "replay": replay,
    "chosen": lambda _: choose(),
}


@pytest.mark.parametrize("kind", KINDS)
class TestMeters(MeterContract):
    @pytest.fixture
    def meter(self, kind: str, tmp_path: Path) -> Meter:
        return KINDS[kind](tmp_path)


class TestCombined:
    def test_joules_are_added_and_both_sources_are_named(self, tmp_path: Path) -> None:
        machine, nvml = FakeMachine(tmp_path), FakeNvml({0: 5_000})
        meter = CombinedMeter(RaplMeter(machine.root, stat=machine.stat), NvmlMeter(nvml=nvml))
        assert meter.source == "rapl+nvml"
        with meter.window() as window:
            work()
            machine.draw(3.0)
            nvml.millijoules[0] = 9_000
        assert window.measurement.energy == Energy(7.0, "rapl+nvml")

    @pytest.mark.parametrize(
        ("parts", "source"),
        [
            ((ModelledMeter(), ClockMeter()), "unavailable"),
            ((ModelledMeter(), NvmlMeter(nvml=FakeNvml())), "modelled"),
            ((NvmlMeter(nvml=FakeNvml()), NvmlMeter(nvml=FakeNvml())), "nvml"),
        ],
    )
    def test_a_sum_is_as_weak_as_its_weakest_part(self, parts: tuple[Meter, Meter], source: str) -> None:
        meter = CombinedMeter(*parts)
        with meter.window() as window:
            work()
        assert meter.source == window.measurement.energy.source == source


class TestModelled:
    def test_watts_can_be_set(self) -> None:
        with ModelledMeter(10.0).window() as window:
            work()
        cost = window.measurement
        assert cost.energy == Energy(cost.cpu_s * 10.0, "modelled")
        assert not cost.energy.measured

    def test_every_machine_has_default_watts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "quantum9")
        assert ModelledMeter().watts_per_busy_core > 0


class TestChoose:
    @pytest.fixture
    def machine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
        """Replace the counters of this machine."""

        def turn(*, counters: bool, nvml: FakeNvml | None) -> None:
            result = rapl(tmp_path) if counters else RaplMeter(tmp_path / "nothing")
            monkeypatch.setattr(meters, "RaplMeter", lambda: result)
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            monkeypatch.setitem(sys.modules, "pynvml", nvml)

        return turn

    @pytest.mark.parametrize(
        ("accelerator", "counters", "nvml", "source"),
        [
            ("cpu", True, None, "rapl"),
            ("cpu", False, None, "modelled"),
            ("cpu", False, FakeNvml(), "modelled"),
            ("cuda", True, FakeNvml(), "rapl+nvml"),
            ("cuda:1", True, FakeNvml({0: -1, 1: 5}), "rapl+nvml"),
            ("cuda", False, FakeNvml(), "nvml"),
            ("cuda", True, None, "unavailable"),
            ("cuda", True, FakeNvml(driver=False), "unavailable"),
            ("cuda:1", False, FakeNvml({0: 5, 1: -1}), "unavailable"),
            ("mps", True, FakeNvml(), "unavailable"),
        ],
    )
    def test_choose_returns_the_best_meter_and_never_a_partial_one(
        self, machine: Callable[..., None], accelerator: str, counters: bool, nvml: FakeNvml | None, source: str
    ) -> None:
        machine(counters=counters, nvml=nvml)
        assert choose(accelerator).source == source


class TestNvml:
    def test_a_window_counts_millijoules(self) -> None:
        nvml = FakeNvml({0: 123_456_000})
        with NvmlMeter(nvml=nvml).window() as window:
            nvml.millijoules[0] += 2_500
        assert window.measurement.energy == Energy(2.5, "nvml")

    def test_a_missing_package_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        with pytest.raises(MissingExtra, match=r"onefold\[gpu\]"):
            NvmlMeter()

    @pytest.mark.parametrize(
        ("visible", "device", "counter"),
        [("1,0", 0, 1), ("1,0", 1, 0), ("GPU-abc", 0, "GPU-abc"), (None, 1, 1)],
    )
    def test_the_board_follows_cuda_visible_devices(
        self, monkeypatch: pytest.MonkeyPatch, visible: str | None, device: int, counter: int | str
    ) -> None:
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        nvml = FakeNvml({0: 0, 1: 0, "GPU-abc": 0})
        with NvmlMeter(device, nvml=nvml).window() as window:
            nvml.millijoules[counter] += 1_000
        assert window.measurement.energy == Energy(1.0, "nvml")

    @pytest.mark.parametrize("visible", ["", "0"])
    def test_a_hidden_board_is_unavailable(self, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        meter = NvmlMeter(1, nvml=FakeNvml({0: 0, 1: 0}))
        assert meter.source == "unavailable"
        assert "CUDA_VISIBLE_DEVICES" in meter.reason

    def test_a_counter_that_fails_later_is_unavailable_and_not_zero(self) -> None:
        nvml = FakeNvml()
        with NvmlMeter(nvml=nvml).window() as window:
            nvml.millijoules[0] = -1
        assert window.measurement.energy == Energy(None, "unavailable")
