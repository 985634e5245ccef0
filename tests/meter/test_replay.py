"""Recorded measurements can be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from meter_contract import work
from replayed_meter import RecordingMeter, ReplayMeter

from onefold.meter import ModelledMeter
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.records import Measurement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording.jsonl"


def test_windows_are_replayed_in_the_order_of_opening(path: Path) -> None:
    recording = RecordingMeter(ModelledMeter(), path)
    with recording.window() as outer:
        with recording.window() as first:
            work()
        with recording.window() as second:
            work()
    meter = ReplayMeter(path)
    assert meter.source == "modelled"
    with meter.window() as outer_again:
        with meter.window() as first_again:
            assert first_again.measurement == Measurement.nothing()
        with meter.window() as second_again:
            pass
    assert first_again.measurement == first.measurement
    assert second_again.measurement == second.measurement
    assert outer_again.measurement == outer.measurement


def test_a_window_that_raises_is_recorded_too(path: Path) -> None:
    recording = RecordingMeter(ModelledMeter(), path)

    def failing_work() -> None:
        with recording.window():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_work()
    assert len(path.read_text().splitlines()) == 2


def test_a_window_beyond_the_recording_is_an_error(path: Path) -> None:
    with RecordingMeter(ModelledMeter(), path).window():
        pass
    meter = ReplayMeter(path)
    with meter.window():
        pass
    with pytest.raises(InputError, match="has only 1 windows"), meter.window():
        pass


@pytest.mark.parametrize("content", ["", "accuracy,loss\n", '{"source": "rapl"}\n{"window": 0}\n', "[1]\n"])
def test_a_file_that_is_not_a_recording_is_an_error(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(InputError, match="not a recording of a meter"):
        ReplayMeter(path)


def test_a_missing_file_is_an_error(path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        ReplayMeter(path)


def test_the_recording_of_a_real_gpu_can_be_replayed() -> None:
    """An NVIDIA H200 asleep for a second, then multiplying matrices for two, inside one window over both."""
    meter = ReplayMeter(Path(__file__).parent.parent / "recordings" / "h200.jsonl")
    with meter.window() as both:
        with meter.window() as idle:
            pass
        with meter.window() as busy:
            pass
    assert meter.source == "nvml"
    assert power_w(idle.measurement) < 200 < power_w(busy.measurement) < 700  # the board may draw 700 W
    assert both.measurement.energy.joules == pytest.approx((idle.measurement + busy.measurement).energy.joules)


def power_w(measurement: Measurement) -> float:
    assert measurement.energy.joules is not None
    return measurement.energy.joules / measurement.time_s
