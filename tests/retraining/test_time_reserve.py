"""The time that is left for the end of a retraining follows the machine: how slow it is, and how steady."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from small_networks import KINDS

from onefold.retraining import contention
from onefold.retraining.contention import INTERVAL_S, INTERVALS, SCHEDULER_STATISTICS, Contention, thread_times
from onefold.retraining.save_cost import save_bytes, weight_bytes, written_bytes
from onefold.retraining.time_reserve import (
    MARGIN,
    MAX_SCATTER,
    PIECE_S,
    PIECES,
    TimeReserve,
    python_slowdown,
    save_s,
    time_write,
)
from onefold.retraining.weight_snapshot import WeightSnapshot


class Machine:
    """The clocks of a machine on which work takes longer than its processor time."""

    def __init__(self) -> None:
        self.now_s = self.busy_s = 0.0
        self.contention = Contention(lambda: (self.now_s, self.busy_s))

    def work(self, *factors: float, seconds: float = INTERVAL_S) -> Machine:
        """Work for an interval each, with so much contention."""
        for factor in factors:
            self.now_s += seconds
            self.busy_s += seconds / factor
            self.contention.note()
        return self


def reserve(*evaluations_s: float, samples: int = 100, machine: Machine | None = None) -> TimeReserve:
    contention = (machine or Machine()).contention
    result = TimeReserve(0.1, 0.2, save_s=1.0, exit_s=0.3, contention=contention, samples=samples)
    for seconds in evaluations_s:
        result.observe(seconds, samples)
    return result


def test_a_steady_machine_reserves_what_was_measured() -> None:
    steady = reserve(0.5, 0.5, 0.5)
    once = 0.1 + 0.2 + 1.0 + 0.3
    assert steady.evaluation_s == pytest.approx(0.5)
    assert once < steady.end_s < 1.3 * once
    assert 2 * 0.5 + 0.1 + once < steady.seconds < 1.4 * (2 * 0.5 + 0.1 + once)


def test_the_end_takes_longer_on_a_busy_machine() -> None:
    idle, busy = reserve(machine=Machine().work(1, 1)), reserve(machine=Machine().work(*[4.0] * 5))
    assert busy.end_s > 3 * idle.end_s
    assert reserve(2.0).evaluation_s == pytest.approx(2.0)
    assert reserve(*[0.5] * 3, 2.0).evaluation_s > 1.8


def test_the_reserve_recovers_when_the_machine_does() -> None:
    machine = Machine().work(*[6.0] * 5)
    busy = reserve(machine=machine).end_s
    machine.work(*[1.0] * 5)
    assert reserve(machine=machine).end_s < busy / 3
    assert reserve(0.5, 4.0, *[0.5] * 5).evaluation_s == pytest.approx(0.5)


def test_a_short_evaluation_that_had_to_wait_says_little() -> None:
    waited, usual = reserve(0.001, 0.001, 0.1, 0.001), reserve(0.001)
    assert waited.seconds == pytest.approx(usual.seconds)


def test_subsets_count_by_their_size() -> None:
    result = reserve(samples=1000)
    result.observe(0.2, 100)
    assert result.evaluation_s == pytest.approx(2.0)


def test_the_margin_grows_with_the_scatter() -> None:
    steady, unsteady = Machine().work(2, 2, 2), Machine().work(2, 2, 3)
    assert reserve(machine=unsteady).margin > reserve(machine=steady).margin
    assert Machine().contention.scatter == steady.contention.scatter == 1.0
    assert reserve(machine=Machine().work(*[1] * 4, 100)).margin == MARGIN * MAX_SCATTER


def test_contention_is_that_of_the_last_seconds() -> None:
    machine = Machine()
    assert machine.contention.factor == 1.0
    assert machine.work(3).contention.factor == pytest.approx(3.0)
    assert machine.work(*[1] * INTERVALS).contention.factor == pytest.approx(1.0)
    assert Machine().work(*[50.0] * 20, seconds=INTERVAL_S / 100).contention.scatter == 1.0  # too short to compare


@pytest.mark.skipif(not SCHEDULER_STATISTICS.exists(), reason="the system does not tell what a thread waits for")
def test_waiting_for_anything_else_is_no_contention() -> None:
    before = thread_times()
    Event().wait(1.0)
    ready_s, ran_s = (after - earlier for after, earlier in zip(thread_times(), before))
    assert 0 <= ran_s <= ready_s + 1e-6  # rounding
    assert ready_s < 0.9


def test_without_statistics_all_time_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for content in ("", "0 0 0\n"):
        (tmp_path / "schedstat").write_text(content)
        monkeypatch.setattr(contention, "SCHEDULER_STATISTICS", tmp_path / "schedstat")
        before_s, _ = thread_times()
        Event().wait(0.05)
        assert thread_times()[0] - before_s >= 0.05


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
