"""Correction of the emulator by measurements of a board."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.device.emulator_correction import BoardMeasurement, EmulatorFit, fit_emulator, read_board_measurements
from onefold.vocabulary.errors import DeviceError
from onefold.vocabulary.records import from_json, to_json

untimed = settings(deadline=None, max_examples=15)
GRID = [(batch, threads) for batch in (1, 4, 16, 64) for threads in (1, 2, 4)]


def emulated(batch: int, threads: int) -> float:
    return 0.001 + 0.002 * batch / threads


def emulated_j(batch: int, threads: int) -> float:
    return emulated(batch, threads) * (2.0 + threads)


def truth(batch: int, threads: int, scale: float, batch_slope: float, thread_slope: float) -> float:
    return emulated(batch, threads) * math.exp(scale) * batch**batch_slope * threads**thread_slope


corrections = st.tuples(st.floats(-1, 1), st.floats(-0.15, 0.15), st.floats(-0.3, 0.3))


@untimed
@given(corrections)
def test_known_correction_is_recovered(correction: tuple[float, float, float]) -> None:
    result = fit_emulator([BoardMeasurement(b, t, truth(b, t, *correction)) for b, t in GRID], emulated)
    assert result.latency.scale == pytest.approx(correction[0], abs=0.02)
    assert result.latency.batch_slope == pytest.approx(correction[1], abs=0.01)
    assert result.latency.thread_slope == pytest.approx(correction[2], abs=0.02)
    at_a_new_point = result.predict(32, 3, emulated(32, 3))
    assert at_a_new_point.latency_s == pytest.approx(truth(32, 3, *correction), rel=0.01)
    assert result.errors is not None
    assert result.errors.median <= result.errors.worst < 0.05
    assert result.errors.points == len(GRID)


@untimed
@given(corrections, st.integers(1, len(GRID)))
def test_estimate_is_within_its_interval(correction: tuple[float, float, float], points: int) -> None:
    result = fit_emulator([BoardMeasurement(b, t, truth(b, t, *correction)) for b, t in GRID[:points]], emulated)
    for batch, threads in [(1, 1), (100, 8)]:
        expected = result.predict(batch, threads, emulated(batch, threads))
        assert 0 < expected.low_s < expected.latency_s < expected.high_s


@untimed
@given(st.floats(0.2, 5))
def test_one_point_moves_only_the_scale(scale: float) -> None:
    result = fit_emulator([BoardMeasurement(1, 1, emulated(1, 1) * scale)], emulated)
    assert result.errors is None
    assert result.predict(1, 1, emulated(1, 1)).latency_s == pytest.approx(emulated(1, 1) * scale, rel=0.02)
    assert (result.latency.batch_slope, result.latency.thread_slope) == (0.0, 0.0)


def test_interval_widens_away_from_the_points() -> None:
    result = fit_emulator([BoardMeasurement(b, 1, 2 * emulated(b, 1)) for b in (1, 2)], emulated)
    near, far = (result.latency.factor(*at) for at in [(1, 1), (100, 4)])
    assert far[2] / far[1] > 1.5 * near[2] / near[1]


def test_prediction_interval_has_nominal_coverage() -> None:
    inside = total = 0
    for seed in range(60):
        draws = np.random.default_rng(seed)
        correction = draws.normal(0, [0.5, 0.1, 0.2])
        noisy = [
            BoardMeasurement(b, t, truth(b, t, *correction) * math.exp(draws.normal(0, 0.05))) for b, t in GRID[::2]
        ]
        result = fit_emulator(noisy, emulated)
        for batch, threads in GRID[1::2]:
            expected = result.predict(batch, threads, emulated(batch, threads))
            new = truth(batch, threads, *correction) * math.exp(draws.normal(0, 0.05))
            inside += expected.low_s <= new <= expected.high_s
            total += 1
    assert 0.9 <= inside / total <= 0.995


def test_energy_is_fitted_to_points_that_have_it() -> None:
    points = [BoardMeasurement(b, t, emulated(b, t), 1.5 * emulated_j(b, t) if b > 1 else None) for b, t in GRID]
    result = fit_emulator(points, emulated, emulated_j)
    assert result.energy_errors is not None
    assert result.energy_errors.points == len([1 for b, _ in GRID if b > 1])
    expected = result.predict(8, 2, emulated(8, 2), emulated_j(8, 2))
    assert expected.energy_j == pytest.approx(1.5 * emulated_j(8, 2), rel=0.02)
    assert expected.low_j is not None
    assert expected.high_j is not None
    assert expected.low_j < expected.energy_j < expected.high_j
    assert result.predict(8, 2, emulated(8, 2)).energy_j is None
    assert fit_emulator(points, emulated).energy is None


@untimed
@given(corrections, st.booleans())
def test_fit_round_trips_through_json(correction: tuple[float, float, float], energy: bool) -> None:
    points = [BoardMeasurement(b, t, truth(b, t, *correction), emulated_j(b, t) if energy else None) for b, t in GRID]
    result = fit_emulator(points, emulated, emulated_j)
    back = from_json(EmulatorFit, json.loads(json.dumps(to_json(result))))
    assert back == result
    assert back.predict(7, 3, 0.1, 0.2) == result.predict(7, 3, 0.1, 0.2)


def test_fit_needs_points_and_valid_emulated_values() -> None:
    with pytest.raises(DeviceError, match="at least one measured point"):
        fit_emulator([], emulated)
    with pytest.raises(DeviceError, match="must be numbers above 0, got nan"):
        fit_emulator([BoardMeasurement(1, 1, 0.1)], lambda batch, threads: math.nan)


class TestReadBoardMeasurements:
    def test_column_order_is_free_and_energy_is_optional(self, tmp_path: Path) -> None:
        path = tmp_path / "points.csv"
        path.write_text("threads,batch, latency_s,energy_j\n1,8,0.5,2.5\n\n2, 16 ,0.25,\n")
        assert read_board_measurements(path) == (BoardMeasurement(8, 1, 0.5, 2.5), BoardMeasurement(16, 2, 0.25))
        path.write_text("\ufeffbatch,threads,latency_s\r\n1,1,0.1\r\n")
        assert read_board_measurements(path) == (BoardMeasurement(1, 1, 0.1),)

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("batch,threads,latency\n1,1,1\n", "line 1: unknown column 'latency'; did you mean 'latency_s'"),
            ("batch,latency_s\n1,1\n", "line 1: expected the header .* threads is missing"),
            ("", "line 1: expected the header"),
            ("batch,threads,latency_s\n", "no measured point"),
            ("batch,threads,latency_s\n1,1,0.5\n1,1\n", "line 3: expected 3 values as in the header, got 2"),
            (
                "batch,threads,latency_s\n1.5,1,0.5\n",
                "line 2: batch must be an integer of at least 1, got '1.5'",
            ),
            ("batch,threads,latency_s\n1,0,0.5\n", "line 2: threads must be an integer"),
            ("batch,threads,latency_s\n1,1,-1\n", "line 2: latency_s must be a number above 0, got '-1'"),
            ("batch,threads,latency_s\n1,1,inf\n", "line 2: latency_s must be a number above 0"),
            (
                "batch,threads,latency_s,energy_j\n1,1,1,lots\n",
                "line 2: energy_j must be a number above 0, got 'lots'",
            ),
        ],
    )
    def test_invalid_line_is_named(self, tmp_path: Path, text: str, complaint: str) -> None:
        path = tmp_path / "points.csv"
        path.write_text(text)
        with pytest.raises(DeviceError, match=complaint):
            read_board_measurements(path)

    def test_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DeviceError, match=r"points\.csv cannot be read"):
            read_board_measurements(tmp_path / "points.csv")
