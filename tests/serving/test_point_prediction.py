"""Prediction of unmeasured points: more threads, and batch sizes in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.device import Device
from onefold.serving.point_prediction import extrapolate_threads, interpolate_batch_size, serial_share
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint

BOARD = Device("board", "A board", 8, 10.0, 5.0, 10**9, idle_w=2.0, busy_w=10.0)
shares, times = st.floats(0, 1), st.floats(1e-6, 10)


def served(batch_size: int, threads: int, latency_s: float, joules: float | None = 0.5) -> Served:
    energy = Energy(joules, "modelled" if joules is not None else "unavailable")
    point = ServingPoint(batch_size, threads)
    return Served(
        point, latency_s, 1.1 * latency_s, 1.5 * latency_s, 0.9 * latency_s, 1.05 * latency_s, 30, energy, 10**8,
        LatencySource.EMULATED,
    )  # fmt: skip


def amdahl(serial: float, threads: int) -> float:
    return serial + (1 - serial) / threads


@given(shares, times, st.integers(1, 8), st.integers(1, 8))
def test_serial_share_is_recovered(serial: float, alone_s: float, few: int, more: int) -> None:
    many = few + more
    result = serial_share(alone_s * amdahl(serial, few), few, alone_s * amdahl(serial, many), many)
    assert result == pytest.approx(serial, abs=1e-9)


@given(times, times)
def test_serial_share_is_between_0_and_1(few_s: float, many_s: float) -> None:
    assert 0 <= serial_share(few_s, 1, many_s, 2) <= 1
    assert 0 <= serial_share(few_s, 2, many_s, 4) <= 1


@given(shares, times)
def test_extrapolation_follows_amdahls_law(serial: float, alone_s: float) -> None:
    known = [served(size, n, size * alone_s * amdahl(serial, n)) for size in (1, 8) for n in (1, 2)]
    result = extrapolate_threads(known, (1, 2, 4, 8), BOARD)
    assert [(candidate.point.batch_size, candidate.point.threads) for candidate in result] == [
        (1, 4),
        (1, 8),
        (8, 4),
        (8, 8),
    ]
    for candidate in result:
        wanted = candidate.point.batch_size * alone_s * amdahl(serial, candidate.point.threads)
        assert candidate.latency_s == pytest.approx(wanted)
        assert candidate.p99_s == pytest.approx(1.5 * wanted)
        assert candidate.low_s <= candidate.latency_s <= candidate.high_s
        perfect_s = 0.9 * candidate.point.batch_size * alone_s * amdahl(serial, 2) * 2 / candidate.point.threads
        assert candidate.low_s >= min(perfect_s, candidate.latency_s) * (1 - 1e-9)
        assert candidate.energy == Energy(pytest.approx(wanted * BOARD.power_w(candidate.point.threads)), "modelled")
        assert (candidate.source, candidate.runs) == (LatencySource.PREDICTED, 0)


def test_intervals_widen_with_the_distance() -> None:
    four, eight = extrapolate_threads([served(1, 1, 0.01), served(1, 2, 0.006)], (1, 2, 4, 8), BOARD)
    assert four.high_s / four.latency_s < eight.high_s / eight.latency_s
    assert "predicted, " in four.source_text


def test_harmful_threads_are_not_extrapolated_as_speedup() -> None:
    result = extrapolate_threads([served(1, 1, 0.01), served(1, 2, 0.02)], (1, 2, 4), BOARD)
    assert [candidate.latency_s for candidate in result] == [0.02]


@given(times, times)
def test_extrapolation_is_never_slower(few_s: float, many_s: float) -> None:
    result = extrapolate_threads([served(1, 1, few_s), served(1, 2, many_s)], (1, 2, 4, 8), BOARD)
    latencies = [many_s, *(candidate.latency_s for candidate in result)]
    assert latencies == sorted(latencies, reverse=True)


def test_one_thread_count_predicts_nothing() -> None:
    assert extrapolate_threads([served(1, 1, 0.01), served(8, 1, 0.04)], (1, 2, 4), BOARD) == []
    assert extrapolate_threads([served(1, 1, 0.01), served(1, 2, 0.01)], (1, 2), BOARD) == []


def test_extrapolation_needs_both_thread_counts() -> None:
    """A batch size measured with one thread count is not extrapolated."""
    result = extrapolate_threads([served(1, 1, 0.01), served(1, 2, 0.006), served(8, 2, 0.02)], (1, 2, 4), BOARD)
    assert [candidate.point for candidate in result] == [ServingPoint(1, 4)]


class TestInterpolateBatchSize:
    KNOWN = (served(1, 2, 0.010, 0.1), served(4, 2, 0.016, 0.4), served(16, 2, 0.040, 1.0), served(8, 1, 9.0))

    def test_known_point_is_unchanged(self) -> None:
        assert interpolate_batch_size(self.KNOWN, ServingPoint(4, 2)) is self.KNOWN[1]

    @given(st.integers(1, 16))
    def test_interpolation_is_linear(self, size: int) -> None:
        result = interpolate_batch_size(self.KNOWN, ServingPoint(size, 2))
        assert result is not None
        assert result.point == ServingPoint(size, 2)
        assert result.latency_s == pytest.approx(0.008 + 0.002 * size)
        assert result.low_s <= result.latency_s <= result.high_s
        assert result.latency_s <= result.p90_s <= result.p99_s
        if size not in (1, 4, 16):
            assert (result.source, result.runs) == (LatencySource.PREDICTED, 0)
            assert result.energy.source == "modelled"
            assert 0.1 <= (result.energy.joules or 0.0) <= 1.0

    def test_no_extrapolation_over_batch_size(self) -> None:
        assert interpolate_batch_size(self.KNOWN, ServingPoint(17, 2)) is None
        assert interpolate_batch_size(self.KNOWN, ServingPoint(1, 4)) is None
        assert interpolate_batch_size((), ServingPoint()) is None

    def test_unknown_energy_stays_unknown(self) -> None:
        known = (self.KNOWN[0], replace(self.KNOWN[2], energy=Energy(None, "unavailable")))
        result = interpolate_batch_size(known, ServingPoint(2, 2))
        assert result is not None
        assert result.energy == Energy(None, "unavailable")
