"""The serving tuner, on real sessions and on a fake one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import generic_point_searches  # noqa: F401 - adds halving
import onnx
import pytest
import torch
from torch import nn

from onefold.device import AFTER_IDLE, Device, HostSession, TimingEffort, open_session
from onefold.serving.export import export, samples_beside
from onefold.serving.signature import architecture
from onefold.serving.space import ServingSpace
from onefold.serving.tuner import PointSearchOptions, ServingTuner
from onefold.vocabulary.errors import InputError, ModelError, TooLarge
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, OptimizeFor, Served, ServingPoint

SHORT = TimingEffort(warm_up_runs=1, min_runs=3, max_runs=10, max_seconds=0.01, precision=0.1)
SPACE = ServingSpace((1, 4, 16), (1,), ("basic", "all"), ("sequential",))


@pytest.fixture(scope="module")
def session(this_host: Device) -> Iterator[HostSession]:
    with HostSession(this_host) as session:
        yield session


class FakeSession:
    """A fake session that records what it is asked."""

    def __init__(self, device: Device, threads: int) -> None:
        self.device, self.threads = device, threads
        self.prepared: list[ServingPoint] = []
        self.asked: list[ServingPoint] = []
        self.efforts: dict[ServingPoint, list[TimingEffort]] = {}

    def prepare(self, model: Path, inputs: Path | None, points: Sequence[ServingPoint]) -> None:
        assert inputs == model.with_suffix(".npz")
        self.prepared += points

    def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
        self.asked.append(point)
        self.efforts.setdefault(point, []).append(effort)
        time_s = 1e-4 + 1e-5 * point.batch_size / point.threads
        energy = Energy(time_s, "modelled")
        return Served(point, time_s, time_s, time_s, time_s, time_s, 5, energy, None, LatencySource.EMULATED)

    def memory(self, model: Path, point: ServingPoint) -> int | None:
        return 10**6 * point.batch_size

    def notes(self, model: Path) -> tuple[str, ...]:
        return (f"pretended {model.name}",)

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *exc: object) -> None: ...


def test_measure_returns_a_surface(session: HostSession, model: Path) -> None:
    tuner = ServingTuner(session, SPACE)
    tuner.prepare(model)
    heard: list[Served] = []
    surface = tuner.measure(model, SHORT, heard.append)
    assert surface.signature == architecture(model).signature
    assert surface.device == "host"
    assert surface.size_bytes == model.stat().st_size
    assert surface.parameters == 4 * 32 + 32 + 32 * 3 + 3
    assert surface.measured_s > 0
    assert not surface.recalled
    for served in surface.served:  # the quickest of each
        assert served.latency_s == min(other.latency_s for other in heard if other.point == served.point)
    assert all(item.source.is_from_device for item in heard)
    assert {item.point.batch_size for item in heard} == {1, 4, 16}
    assert set(surface.metrics()) >= {"latency_s", "throughput_per_s", "size_bytes"}


def test_grid_is_measured_once(session: HostSession, model: Path) -> None:
    tuner = ServingTuner(session, SPACE, PointSearchOptions(algorithm="grid"))
    tuner.prepare(model)
    heard: list[Served] = []
    surface = tuner.measure(model, SHORT, heard.append)
    assert len(heard) == len(SPACE)
    assert {item.point for item in heard} == set(SPACE.points())
    assert len(surface.served) == len(SPACE)


def test_batch_size_1_is_always_measured(this_host: Device, model: Path) -> None:
    """Latency is that of batch size 1, whatever the goal."""
    for purpose in OptimizeFor:
        pretended = FakeSession(this_host, this_host.cores)
        surface = ServingTuner(pretended, SPACE, PointSearchOptions(purpose)).measure(model, SHORT)
        assert surface.best(OptimizeFor.LATENCY).point.batch_size == 1
        assert max(Counter(pretended.asked).values()) <= 3  # the finalists again


def test_best_points_are_measured_with_the_final_effort(this_host: Device, model: Path) -> None:
    pretended = FakeSession(this_host, this_host.cores)
    final = replace(SHORT, min_runs=9)
    surface = ServingTuner(pretended, SPACE).measure(model, SHORT, final=final, after_idle=True)
    best = {surface.best(purpose).point for purpose in OptimizeFor}
    assert {point for point, efforts in pretended.efforts.items() if final in efforts} == best
    rested = {point for point, efforts in pretended.efforts.items() if AFTER_IDLE in efforts}
    assert rested == {surface.best(purpose).point for purpose in (OptimizeFor.LATENCY, OptimizeFor.THROUGHPUT)}
    assert {served.point for served in surface.served if served.after_rest_s is not None} == rested


def test_too_large_batch_is_left_out(this_host: Device, model: Path) -> None:
    class Tight(FakeSession):
        def serve(self, model: Path, point: ServingPoint, effort: TimingEffort) -> Served:
            if point.batch_size > 4:
                raise TooLarge("no")
            return super().serve(model, point, effort)

    for algorithm in ("few", "grid", "halving"):
        surface = ServingTuner(Tight(this_host, 1), SPACE, PointSearchOptions(algorithm=algorithm)).measure(
            model, SHORT, final=SHORT
        )
        assert {served.point.batch_size for served in surface.served} == {1, 4}
        assert surface.best(OptimizeFor.THROUGHPUT).memory_bytes == 4 * 10**6


def test_batch_that_fits_only_once_is_left_out(this_host: Device, model: Path) -> None:
    class Tight(FakeSession):
        def memory(self, model: Path, point: ServingPoint) -> int | None:
            if point.batch_size > 4:
                raise TooLarge("no")
            return 10**6

    surface = ServingTuner(Tight(this_host, 1), SPACE).measure(model, SHORT, final=SHORT)
    assert surface.best(OptimizeFor.THROUGHPUT).point.batch_size == 4


def test_fixed_batch_size_1_is_noted(session: HostSession, tmp_path: Path) -> None:
    path = export(nn.Linear(4, 2), [torch.zeros(2, 4)], tmp_path / "fixed.onnx")
    samples_beside(path).unlink()
    fixed = onnx.load(str(path))
    size = fixed.graph.input[0].type.tensor_type.shape.dim[0]
    size.dim_value = 1
    onnx.save(fixed, str(path))
    surface = ServingTuner(session, SPACE).measure(path, SHORT)
    assert {served.point.batch_size for served in surface.served} == {1}
    assert surface.notes[0].startswith("the model has a fixed batch size of 1")
    size.dim_value = 6
    onnx.save(fixed, str(path))
    with pytest.raises(ModelError, match="has a fixed batch size of 6; export it with a dynamic first dimension"):
        ServingTuner(session, SPACE).prepare(path)


def test_dynamic_dimensions_are_noted(session: HostSession, tmp_path: Path) -> None:
    path = export(nn.Linear(4, 2), [torch.zeros(2, 3, 4)], tmp_path / "open.onnx")
    loaded = onnx.load(str(path))
    loaded.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "words"
    onnx.save(loaded, str(path))
    assert ServingTuner(session, SPACE).measure(path, SHORT).notes == ()  # there are samples, which tell
    samples_beside(path).unlink()
    (said,) = ServingTuner(session, SPACE).measure(path, SHORT).notes
    assert "measured at size 1: input0[words]; put real inputs beside the model" in said


def test_slow_batches_are_skipped(this_host: Device, model: Path) -> None:
    """Skipped by the latency of batch size 1, here 0.11 ms."""
    pretended = FakeSession(this_host, 1)
    effort = replace(SHORT, max_batch_s=0.0005)
    surface = ServingTuner(pretended, SPACE, PointSearchOptions(algorithm="grid")).measure(model, effort)
    assert {served.point.batch_size for served in surface.served} == {1, 4}
    assert {point.batch_size for point in pretended.asked} == {1, 4}


def test_repeated_proposals_are_measured_again(this_host: Device, model: Path) -> None:
    pretended = FakeSession(this_host, 1)
    surface = ServingTuner(pretended, SPACE, PointSearchOptions(algorithm="halving")).measure(model, SHORT)
    assert len(pretended.asked) > len(set(pretended.asked)) == len(SPACE)
    assert len(surface.served) == len(SPACE)


def test_threads_beyond_the_cores_are_predicted(this_host: Device, model: Path) -> None:
    board = replace(this_host, name="board", cores=4)
    pretended = FakeSession(board, 2)
    tuner = ServingTuner(pretended)
    tuner.prepare(model)
    surface = tuner.measure(model, SHORT)
    assert {point.threads for point in pretended.prepared} == {1, 2}
    assert {point.threads for point in pretended.asked} == {1, 2}
    predicted = [served for served in surface.served if served.source is LatencySource.PREDICTED]
    assert {item.point.threads for item in predicted} == {4}
    assert all(item.runs == 0 for item in predicted)
    for item in predicted:
        twin = next(known for known in surface.served if known.point == replace(item.point, threads=2))
        assert item.latency_s <= twin.latency_s


def test_device_with_more_cores_than_this_machine(this_host: Device, model: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    large = replace(this_host, name="large", cores=4 * cores, gflops=this_host.gflops / 4)
    with open_session(large, this_host) as session:
        tuner = ServingTuner(session, replace(SPACE, threads=(1, cores, 4 * cores) if cores > 1 else (1, 4)))
        tuner.prepare(model)
        surface = tuner.measure(model, SHORT)
    assert surface.device == "large"
    assert {served.source for served in surface.served} <= {LatencySource.EMULATED, LatencySource.PREDICTED}
    assert all(
        (served.source is LatencySource.PREDICTED) == (served.point.threads > cores) for served in surface.served
    )


def test_unknown_algorithm_is_refused_before_measuring(session: HostSession) -> None:
    with pytest.raises(InputError, match="did you mean 'few'"):
        ServingTuner(session, SPACE, PointSearchOptions(algorithm="fev"))


def test_unservable_model_is_an_error(session: HostSession, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no")
    with pytest.raises(ModelError):
        ServingTuner(session, SPACE).prepare(tmp_path / "bad.onnx")
