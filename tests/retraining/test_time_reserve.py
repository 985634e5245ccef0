"""The time that is left for the end of a retraining follows the machine: how slow it is, and how steady."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_networks import KINDS

from onefold.retraining.save_cost import save_bytes, weight_bytes, written_bytes
from onefold.retraining.time_reserve import (
    MAX_JITTER,
    PIECE_S,
    PIECES,
    TimeReserve,
    jitter,
    python_slowdown,
    save_s,
    time_write,
)
from onefold.retraining.weight_snapshot import WeightSnapshot


def reserve(*evaluations_s: float, samples: int = 100) -> TimeReserve:
    result = TimeReserve(collection_s=0.1, write_s=0.2, save_s=1.0, exit_s=0.3, samples=samples)
    for seconds in evaluations_s:
        result.observe(seconds, samples)
    return result


def test_a_steady_machine_reserves_what_was_measured() -> None:
    steady = reserve(0.5, 0.5, 0.5)
    once = 0.1 + 0.2 + 1.0 + 0.3
    assert steady.evaluation_s == pytest.approx(0.5)
    assert once < steady.end_s < 1.3 * once
    assert 2 * 0.5 + 0.1 + once < steady.seconds < 1.4 * (2 * 0.5 + 0.1 + once)


def test_everything_takes_longer_once_evaluations_do() -> None:
    idle, busy = reserve(0.5, 0.5), reserve(0.5, *[2.0] * 5)
    assert busy.evaluation_s == pytest.approx(2.0)
    assert busy.end_s == pytest.approx(4 * idle.end_s, rel=0.1)
    assert busy.seconds == pytest.approx(4 * idle.seconds, rel=0.1)


def test_the_reserve_recovers_when_the_machine_does() -> None:
    assert reserve(0.5, 4.0, *[0.5] * 5).seconds == pytest.approx(reserve(0.5).seconds)


def test_subsets_count_by_their_size() -> None:
    result = TimeReserve(0.1, 0.2, 1.0, 0.3, samples=1000)
    result.observe(0.2, 100)
    assert result.evaluation_s == pytest.approx(2.0)


def test_the_margin_grows_with_the_scatter() -> None:
    assert reserve(0.5, 0.5, 0.8).margin > reserve(0.5, 0.5, 0.5).margin
    assert jitter([]) == jitter([0.0]) == jitter([1.0]) == 1.0
    assert jitter([1.0, 1.0, 1.5]) == pytest.approx(1.5)
    assert jitter([1.0, 1.0, 100.0]) == MAX_JITTER


def test_python_is_compared_with_the_reference_machine() -> None:
    times = iter([1.0, 1.0 + 3 * PIECES * PIECE_S])
    assert python_slowdown(lambda: next(times)) == pytest.approx(3.0)


def test_larger_networks_take_longer_to_save() -> None:
    small, large = KINDS["perceptron"].network(), KINDS["residual"].network()
    assert 0 < save_s(small, is_served=True) < save_s(large, is_served=True)
    assert time_write(WeightSnapshot(small)) > 0


def test_exchanging_weights_takes_less_than_an_export() -> None:
    network = KINDS["residual"].network()
    plain, exported = save_s(network, is_served=False), save_s(network, is_served=True)
    exchanged = save_s(network, is_served=True, is_exchanged=True)
    assert plain < exchanged < exported
    assert save_bytes(network, is_served=True, is_exchanged=True) < save_bytes(network, is_served=True)


def test_saving_copies_the_folder_but_not_the_previous_model(tmp_path: Path) -> None:
    network = KINDS["perceptron"].network()
    (tmp_path / "previous").mkdir()
    for name, size in (("model.onnx", 1000), ("model.json", 10), ("previous/model.onnx", 5000)):
        (tmp_path / name).write_bytes(bytes(size))
    weights = written_bytes(network, None)
    assert weights == weight_bytes(network) > 0
    assert written_bytes(network, tmp_path) == weights + 1000 + 10 + 1000  # a copy of both, and the new ONNX file
