"""Knobs are tuned while a real network trains; a simulated clock decides which knobs are faster."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from onefold import meter
from onefold.processes import available_cores
from onefold.training import knob_planner, knob_session
from onefold.training.job_clusters import kmeans_labels
from onefold.training.knob_memory import SimilarJobs
from onefold.training.knob_session import KnobSession
from onefold.training.knobs import TrainingContext, available_knobs, precision
from onefold.training.knobs.processor import machine_description
from onefold.training.splits import LoaderSettings
from onefold.training.window_plan import MIN_STEPS
from onefold.vocabulary.knobs import (
    JobProfile,
    KnobMemory,
    KnobOptions,
    KnobRecord,
    Phase,
    SettledKnobs,
    knob_gain,
    why_no_gain,
)
from onefold.vocabulary.records import Config, Energy, Epoch, Measurement

BATCH = (torch.randn(8, 1, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)
REAL_STEPS = 6  # of an epoch: the profiler needs operators; the other steps only advance the clock
CPU = torch.device("cpu")


class Clock:
    """Advances by the cost of a step with the knobs that are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.has_contention = False
        self.neighbors = 0.0  # cores that other processes keep busy
        self.stolen_s = 0.0
        monkeypatch.setattr(knob_session.time, "perf_counter", lambda: self.now)

    def step(self, context: TrainingContext) -> None:
        cost = 0.010
        if context.adapters:  # channels last
            cost *= 0.5
        if torch.get_num_threads() > 1 and self.has_contention:
            cost *= 4
        if context.loader is not None and not context.loader.workers:
            cost *= 3  # loading a batch
        self.now += cost
        self.stolen_s += cost * self.neighbors

    def others_s(self) -> float:
        return self.stolen_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def _clustered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the clusters of earlier jobs: simulated steps leave them no time."""
    monkeypatch.setattr(SimilarJobs, "is_ready", property(lambda jobs: jobs._finished.wait()))


@pytest.fixture
def context() -> Iterator[TrainingContext]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    threads = torch.get_num_threads()
    torch.set_num_threads(len(available_cores()))
    yield TrainingContext(model, torch.optim.SGD(model.parameters(), lr=0.01), CPU, tuple(available_cores()))
    torch.set_num_threads(threads)


def open_session(context: TrainingContext, clock: Clock, mode: Any = "on", **options: Any) -> KnobSession:
    options = {"machine": "here", "neighbors": clock, **options}
    return KnobSession(context, KnobOptions(mode), meter=meter.choose("cpu"), **options)


def train(
    session: KnobSession,
    context: TrainingContext,
    clock: Clock,
    steps: int = 200,
    epoch: int = 1,
    real_steps: int = REAL_STEPS,
    simulated_loss: float = 1.0,
) -> KnobRecord:
    bias = torch.zeros(1, requires_grad=True)
    for step, (images, labels) in enumerate(session.tuned([BATCH] * steps)):
        if step < real_steps:
            context.optimizer.zero_grad()
            nn.functional.cross_entropy(context.model(images), labels).backward()
            context.optimizer.step()
        else:
            (bias + simulated_loss).backward()  # the constant loss of a simulated step
        clock.step(context)
    cost = Measurement(1.0, 1.0, Energy(None, "unavailable"))
    return session.report(Epoch(0, epoch, 0, {}, cost))


def phases(record: KnobRecord) -> list[Phase]:
    return list(dict.fromkeys(window.phase for window in record.windows))


def learned_by(record: KnobRecord) -> KnobMemory:
    assert record.learned is not None
    return record.learned


def test_the_best_knobs_are_probed_settled_and_learned(context: TrainingContext, clock: Clock) -> None:
    session = open_session(context, clock)
    record = train(session, context, clock)
    assert phases(record) == [Phase.FOUND, Phase.PROBED, Phase.COMPARED, Phase.SETTLED]
    assert record.windows[-1].knobs.memory_format == "channels last"
    assert record.windows[-1].step_s == pytest.approx(0.005)
    assert session.settled is not None
    assert session.settled.setting.memory_format == "channels last"
    assert learned_by(record).gain == pytest.approx(2.0)
    assert learned_by(record).profile == record.profile
    assert any("probed" in note for note in record.notes)


def test_slow_data_loading_gets_workers(context: TrainingContext, clock: Clock) -> None:
    context.loader = LoaderSettings()
    record = train(open_session(context, clock), context, clock)
    assert record.windows[-1].knobs.loaders == 1
    assert learned_by(record).gain == pytest.approx(6.0)
    assert context.loader == LoaderSettings(), "restored"


def test_all_knobs_are_restored_after_an_epoch(context: TrainingContext, clock: Clock) -> None:
    threads = torch.get_num_threads()
    train(open_session(context, clock), context, clock)
    assert context.adapters == []
    assert torch.get_num_threads() == threads
    assert all(parameter.is_contiguous() for parameter in context.model.parameters())


def test_all_knobs_are_restored_after_an_aborted_epoch(context: TrainingContext, clock: Clock) -> None:
    session = open_session(context, clock)
    for step, (images, labels) in enumerate(session.tuned([BATCH] * 100)):
        nn.functional.cross_entropy(context.model(images), labels).backward()
        clock.step(context)
        if step == 60:
            break
    session.restore()
    assert context.adapters == []
    assert train(session, context, clock).windows


def test_settled_knobs_are_kept_in_the_next_epoch_and_rung(context: TrainingContext, clock: Clock) -> None:
    first = open_session(context, clock)
    train(first, context, clock)
    assert phases(train(first, context, clock, epoch=2)) == [Phase.SETTLED]
    second = open_session(context, clock, settled=first.settled)
    record = train(second, context, clock)
    assert phases(record) == [Phase.SETTLED]
    assert record.windows[0].knobs.memory_format == "channels last"
    elsewhere = open_session(context, clock, machine="there", settled=first.settled)
    assert Phase.PROBED in phases(train(elsewhere, context, clock))


def test_a_similar_job_reuses_the_knobs_and_tests_only_the_threads(context: TrainingContext, clock: Clock) -> None:
    learned = learned_by(train(open_session(context, clock), context, clock))
    record = train(open_session(context, clock, remembered=[learned]), context, clock)
    recalled = phases(record)
    assert [phase for phase in recalled if phase is not Phase.PROBED] == [Phase.FOUND, Phase.RECALLED, Phase.COMPARED]
    probed = [window.knobs for window in record.windows if window.phase is Phase.PROBED]
    assert {(knobs.memory_format, knobs.update) for knobs in probed} <= {("channels last", "loop")}
    assert record.windows[-1].step_s == pytest.approx(0.005)
    assert record.learned is None
    assert any("recalled" in note for note in record.notes)
    probing = train(open_session(context, clock, "probe", remembered=[learned]), context, clock)
    assert Phase.PROBED in phases(probing)


@pytest.mark.skipif(len(available_cores()) < 2, reason="one core has no threads to choose")
def test_recall_tests_the_threads_beside_a_neighbor(context: TrainingContext, clock: Clock) -> None:
    learned = learned_by(train(open_session(context, clock), context, clock))
    assert learned.load == pytest.approx(0.0)
    clock.has_contention, clock.neighbors = True, 1.0
    record = train(open_session(context, clock, remembered=[learned]), context, clock, steps=400)
    assert record.windows[-1].phase is Phase.RECALLED
    assert record.windows[-1].knobs.memory_format == "channels last"
    assert record.windows[-1].step_s == pytest.approx(0.005)
    assert record.windows[-1].load == pytest.approx(1.0)


@pytest.mark.skipif(len(available_cores()) < 2, reason="one core has no threads to choose")
@pytest.mark.parametrize("mode", ["on", "recall"])
def test_a_neighbor_that_leaves_is_noticed_though_no_step_becomes_faster(
    context: TrainingContext, clock: Clock, mode: str
) -> None:
    plain_step = clock.step

    def step(context: TrainingContext) -> None:
        before = clock.now
        plain_step(context)
        if torch.get_num_threads() == 1:
            clock.now = before + 2 * (clock.now - before)

    clock.step = step  # type: ignore[method-assign]
    learned = learned_by(train(open_session(context, clock), context, clock))
    clock.has_contention, clock.neighbors = True, 1.0
    session = open_session(context, clock, mode, remembered=[learned])
    record = train(session, context, clock, steps=600)
    assert record.windows[-1].step_s == pytest.approx(0.010)
    clock.has_contention, clock.neighbors = False, 0.0
    record = train(session, context, clock, steps=2000)
    assert any("fewer cores busy" in note for note in record.notes)
    assert record.windows[-1].step_s == pytest.approx(0.005)


@pytest.mark.skipif(len(available_cores()) < 2, reason="one core has no threads to choose")
def test_a_job_on_one_core_gets_its_threads_back_when_the_neighbor_leaves(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(_: TrainingContext) -> None:
        cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
        disturbance = 4.0 if threads > 1 else 1.5 if cores > 1 else 1.0
        cost = 0.010 * disturbance if clock.has_contention else 0.010 / threads
        clock.now += cost
        clock.stolen_s += cost * clock.neighbors

    monkeypatch.setattr(clock, "step", step)
    clock.has_contention, clock.neighbors = True, 1.0
    session = open_session(context, clock)
    beside = train(session, context, clock, steps=1000)
    assert (beside.windows[-1].knobs.threads, beside.windows[-1].knobs.cores) == (1, 1)
    assert not any(window.knobs.cores == 1 and window.knobs.threads > 1 for window in beside.windows)
    clock.has_contention, clock.neighbors = False, 0.0
    alone = train(session, context, clock, steps=2000)
    assert alone.windows[-1].knobs.threads == len(available_cores())
    assert alone.windows[-1].knobs.cores == "all"


def test_jobs_learned_under_another_load_are_told_apart(context: TrainingContext, clock: Clock) -> None:
    alone = learned_by(train(open_session(context, clock), context, clock))
    beside = replace(alone, load=1.0, knobs=Config(alone.knobs, update="fused"))
    for load, expected in ((0.0, "loop"), (1.0, "fused")):
        clock.neighbors = load
        record = train(open_session(context, clock, remembered=[alone, beside]), context, clock)
        recalled = next(window for window in record.windows if window.phase is Phase.RECALLED)
        assert recalled.knobs.update == expected


def test_knobs_learned_on_another_machine_are_ignored(context: TrainingContext, clock: Clock) -> None:
    learned = learned_by(train(open_session(context, clock), context, clock))
    other = replace(learned, machine="there")
    assert Phase.PROBED in phases(train(open_session(context, clock, remembered=[other]), context, clock))


def test_mode_recall_keeps_the_defaults_of_an_unknown_job(context: TrainingContext, clock: Clock) -> None:
    far = KnobMemory("here", "time", False, JobProfile({"x": 9.0}, ()), Config(memory_format="channels last"), 2.0, 1.0)
    record = train(open_session(context, clock, "recall", remembered=[far]), context, clock)
    assert phases(record) == [Phase.FOUND]
    assert context.adapters == []


@pytest.mark.skipif(len(available_cores()) < 2, reason="one core has no threads to choose")
def test_contention_that_comes_and_goes_is_answered_within_20_windows(context: TrainingContext, clock: Clock) -> None:
    session = open_session(context, clock)
    train(session, context, clock)
    assert torch.get_num_threads() > 1
    for has_contention in (True, False):
        clock.has_contention = has_contention
        record = train(session, context, clock, steps=3000)
        if has_contention:
            assert any("probing again" in note for note in record.notes)
        recovered = next(i for i, window in enumerate(record.windows) if window.step_s <= 0.005 / 0.9)
        assert recovered <= 20


def test_a_network_that_does_not_run_with_a_knob_trains_without_it(clock: Clock) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.linear = nn.Conv2d(1, 2, 3), nn.Linear(18, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.linear(self.convolution(images).view(len(images), -1))

    model = Views()
    context = TrainingContext(model, torch.optim.SGD(model.parameters(), lr=0.01), CPU, tuple(available_cores()))
    record = train(open_session(context, clock), context, clock)
    assert any("does not run with memory_format" in note for note in record.notes)
    assert {window.knobs.memory_format for window in record.windows} == {"contiguous"}


@pytest.mark.parametrize("steps", [3, 12])
def test_windows_continue_over_short_epochs(context: TrainingContext, clock: Clock, steps: int) -> None:
    session = open_session(context, clock)
    epochs = 240 // steps
    records = [train(session, context, clock, steps, epoch, real_steps=1) for epoch in range(1, epochs)]
    assert session.settled is not None
    assert session.settled.setting.memory_format == "channels last"
    assert sum(len(record.windows) for record in records) > 6


def test_unavailable_knobs_are_recorded(context: TrainingContext, clock: Clock) -> None:
    record = train(open_session(context, clock), context, clock)
    assert set(record.missing) == set(available_knobs(context).unavailable)
    assert "precision" in record.missing


def test_memory_limits_are_probed_only_by_exhaustive_strategies(context: TrainingContext, clock: Clock) -> None:
    class Limit:
        name, reduces_precision, may_fail, setup_s = "memory_gib", False, False, 0.0

        def options(self, _: TrainingContext) -> tuple[str, int]:
            return "max", 4

        def applied(self, *_: Any) -> AbstractContextManager[None]:
            return nullcontext()

    few = open_session(context, clock, "probe", knobs=[Limit()])
    assert "makes nothing faster" in train(few, context, clock).missing["memory_gib"]
    options = KnobOptions("probe", probing="grid")
    grid = KnobSession(
        context, options, meter=meter.choose("cpu"), machine="here", neighbors=clock, knobs=[Limit()]
    )  # fmt: skip
    record = train(grid, context, clock)
    assert {window.knobs.memory_gib for window in record.windows} == {"max", 4}


def test_a_candidate_that_is_much_slower_is_given_up_early(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_step = clock.step

    def step(context: TrainingContext) -> None:
        plain_step(context)
        clock.now += 9.0 * bool(context.adapters)

    monkeypatch.setattr(clock, "step", step)
    record = train(open_session(context, clock), context, clock)
    probed = [window for window in record.windows if window.knobs.memory_format == "channels last"]
    assert probed
    assert all(window.steps == knob_session.ABORT_STEPS for window in probed)
    assert record.windows[-1].knobs.memory_format == "contiguous"


def open_reduced_session(context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> KnobSession:
    """Return a session in which reduced precision halves the cost of a step, on any processor."""
    monkeypatch.setattr(precision, "_cpu_flags", lambda: {"bf16"})
    plain_step = clock.step

    def step(context: TrainingContext) -> None:
        before = clock.now
        plain_step(context)
        if torch.is_autocast_enabled("cpu"):
            clock.now = before + (clock.now - before) / 2

    monkeypatch.setattr(clock, "step", step)
    return KnobSession(
        context, KnobOptions("probe", reduced=True), meter=meter.choose("cpu"), machine="here", neighbors=clock
    )


def test_reduced_precision_is_kept_while_the_loss_does_not_rise(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_reduced_session(context, clock, monkeypatch)
    record = train(session, context, clock, steps=500)
    assert record.windows[-1].knobs.precision == "bfloat16"
    with session.for_evaluation():
        assert not torch.is_autocast_enabled("cpu"), "evaluation is exact"
    clock.has_contention = True
    record = train(session, context, clock, steps=2000)
    assert record.windows[-1].knobs.precision == "bfloat16"
    assert not any("raised the loss" in note for note in record.notes)


def test_reduced_precision_that_raises_the_loss_is_rejected(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knob_planner, "is_no_worse", lambda reduced, exact: not (reduced and exact))
    session = open_reduced_session(context, clock, monkeypatch)
    record = train(session, context, clock, steps=500)
    assert record.windows[-1].knobs.precision == "float32"
    assert record.windows[-1].knobs.memory_format == "channels last"
    assert any("raised the loss" in note for note in record.notes)


def test_recalled_reduced_precision_is_checked_before_it_is_used(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_reduced_session(context, clock, monkeypatch)
    learned = learned_by(train(session, context, clock, steps=500))
    assert learned.knobs.precision == "bfloat16"
    monkeypatch.setattr(knob_session, "output_error", lambda *_: 0.4)
    options = KnobOptions("recall", reduced=True)
    for known in ({"remembered": [learned]}, {"settled": session.settled}):
        again = KnobSession(
            context, options, meter=meter.choose("cpu"), machine="here", neighbors=clock, **known  # type: ignore[arg-type]
        )  # fmt: skip
        record = train(again, context, clock, steps=200)
        assert {window.knobs.precision for window in record.windows} == {"float32"}
        assert record.windows[-1].knobs.memory_format == "channels last"
        assert any("changes the outputs by 40%" in note for note in record.notes)
        assert record.in_use is not None
        assert record.in_use.precision == "float32"


def test_reduced_precision_is_checked_again_later(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_reduced_session(context, clock, monkeypatch)
    assert train(session, context, clock, steps=500).windows[-1].knobs.precision == "bfloat16"
    monkeypatch.setattr(knob_session, "output_error", lambda *_: 0.4)
    record = train(session, context, clock, steps=600)
    assert record.windows[-1].knobs.precision == "float32"
    assert session.settled is not None
    assert session.settled.setting.precision == "float32"


def test_reduced_precision_is_given_back_when_the_loss_rises(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_reduced_session(context, clock, monkeypatch)
    assert train(session, context, clock, steps=600).windows[-1].knobs.precision == "bfloat16"
    record = train(session, context, clock, steps=1000, simulated_loss=2.0)
    assert record.windows[-1].knobs.precision == "float32"
    assert any("the loss rises" in note for note in record.notes)


def test_features_that_reduced_precision_loses_are_learned_in_full_precision(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(offset: float) -> KnobRecord:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        context = TrainingContext(model, torch.optim.Adam(model.parameters(), lr=0.01), CPU, tuple(available_cores()))
        session = open_reduced_session(context, clock, monkeypatch)
        labels = torch.arange(64) % 4
        inputs = nn.functional.one_hot(labels, 16) * 2.0 + torch.randn(64, 16) * 0.1 + offset
        for images, targets in session.tuned([(inputs, labels)] * 500):
            context.optimizer.zero_grad()
            nn.functional.cross_entropy(model(images).float(), targets).backward()
            context.optimizer.step()
            clock.step(context)
        return session.report(Epoch(0, 1, 0, {}, Measurement.nothing()))

    record = trained(0.0)
    assert record.windows[-1].knobs.precision == "bfloat16"
    record = trained(1000.0)
    assert {window.knobs.precision for window in record.windows} == {"float32"}
    assert any("of their variation" in note for note in record.notes)


def test_recalled_knobs_that_are_not_faster_are_replaced_by_probing(context: TrainingContext, clock: Clock) -> None:
    learned = learned_by(train(open_session(context, clock), context, clock))
    slow = replace(learned, knobs=Config(learned.knobs, memory_format="contiguous", update="fused"))
    record = train(open_session(context, clock, remembered=[slow]), context, clock, steps=400)
    assert any("not faster here" in note for note in record.notes)
    assert record.windows[-1].knobs.memory_format == "channels last"
    assert record.learned is not None


def test_settled_knobs_that_are_unavailable_are_ignored(context: TrainingContext, clock: Clock) -> None:
    setting = Config(memory_format="channels last", cores="977", compile="compiled")
    record = train(open_session(context, clock, settled=SettledKnobs("here", setting, Phase.SETTLED)), context, clock)
    assert record.windows[-1].knobs.memory_format == "channels last"
    assert record.windows[-1].knobs.get("cores", "all") == "all"
    assert "compile" not in record.windows[-1].knobs


def test_a_loop_that_fetches_all_batches_first_is_told_so(context: TrainingContext, clock: Clock) -> None:
    session = open_session(context, clock)
    for epoch in (1, 2):
        for images, labels in list(session.tuned([BATCH] * 20)):
            nn.functional.cross_entropy(context.model(images), labels).backward()
            clock.step(context)
        record = session.report(Epoch(0, epoch, 0, {}, Measurement.nothing()))
        assert record.windows == ()
        assert "fetches several batches" in record.untunable
        assert knob_gain([record]) is None
        assert "fetches several batches" in why_no_gain([record])
        assert context.adapters == []


def test_a_loop_that_fetches_several_batches_at_a_time_is_told_so(context: TrainingContext, clock: Clock) -> None:
    session = open_session(context, clock)
    fetched: list[Any] = []
    for batch in session.tuned([BATCH] * 40):
        fetched.append(batch)
        if len(fetched) == 4:
            for images, labels in fetched:
                nn.functional.cross_entropy(context.model(images), labels).backward()
                clock.step(context)
            fetched.clear()
    assert "fetches several batches" in session.report(Epoch(0, 1, 0, {}, Measurement.nothing())).untunable


def test_a_gain_is_measured_in_turn(context: TrainingContext, clock: Clock) -> None:
    record = train(open_session(context, clock), context, clock)
    compared = [window for window in record.windows if window.phase is Phase.COMPARED]
    formats = [window.knobs.memory_format for window in compared]
    assert formats == ["contiguous", "channels last", "channels last", "contiguous"]
    gain = knob_gain([record])
    assert gain is not None
    assert [window.step_s for window in gain] == pytest.approx([0.010, 0.005])
    assert all(window.started_at is not None and window.load is not None for window in record.windows)


def test_training_that_becomes_faster_by_itself_is_no_gain(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = count()
    monkeypatch.setattr(clock, "step", lambda _: setattr(clock, "now", clock.now + max(0.01, 0.1 - next(steps) / 1000)))
    record = train(open_session(context, clock), context, clock, steps=400)
    assert any("no faster than the defaults" in note for note in record.notes)
    assert knob_gain([record]) is None
    assert why_no_gain([record]) == "no other setting is faster"


def test_batches_that_another_thread_reads_are_passed_through(context: TrainingContext, clock: Clock) -> None:
    session, batches = open_session(context, clock), []
    reader = threading.Thread(target=lambda: batches.extend(session.tuned([BATCH] * 30)))
    reader.start()
    reader.join()
    assert all(batch is BATCH for batch in batches)
    record = session.report(Epoch(0, 1, 0, {}, Measurement.nothing()))
    assert record.windows == ()
    assert "another thread" in record.untunable


def test_many_windows_of_an_epoch_are_merged(context: TrainingContext, clock: Clock) -> None:
    record = train(open_session(context, clock), context, clock, steps=6000)
    assert len(record.windows) < knob_session.MAX_WINDOWS
    assert sum(window.steps for window in record.windows) > 5000


def test_defaults_that_are_much_slower_are_compared_briefly(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_step = clock.step

    def step(context: TrainingContext) -> None:
        plain_step(context)
        clock.now += 0.5 * (not context.adapters)

    monkeypatch.setattr(clock, "step", step)
    record = train(open_session(context, clock, "probe"), context, clock)
    found = next(window for window in record.windows if window.phase is Phase.FOUND)
    assert found.steps == MIN_STEPS
    compared = [window for window in record.windows if window.phase is Phase.COMPARED]
    slow = [window for window in compared if window.knobs.memory_format == "contiguous"]
    assert [window.steps for window in slow] == [knob_session.ABORT_STEPS] * knob_planner.COMPARISONS
    fast = [window for window in compared if window.knobs.memory_format == "channels last"]
    assert all(window.steps * window.step_s >= knob_planner.WINDOW_S["time"] / 4 for window in fast)


def test_losses_of_two_precisions_are_compared_in_windows_of_full_length_that_differ_in_nothing_else(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_reduced_session(context, clock, monkeypatch)
    reduced_step = clock.step

    def step(context: TrainingContext) -> None:
        before = clock.now
        reduced_step(context)
        if torch.is_autocast_enabled("cpu"):
            clock.now = before + (clock.now - before) / 3
        clock.now += 0.5 * (not context.adapters)  # the defaults are much slower

    monkeypatch.setattr(clock, "step", step)
    record = train(session, context, clock, steps=500)
    assert record.windows[-1].knobs.precision == "bfloat16"
    compared = [window for window in record.windows if window.phase is Phase.COMPARED]
    exact = [window for window in compared if window.knobs == Config(record.windows[-1].knobs, precision="float32")]
    assert len(exact) == knob_planner.COMPARISONS
    assert all(window.steps >= knob_planner.MIN_STEPS_FOR_LOSS for window in exact)
    defaults = [window for window in compared if window.knobs.memory_format == "contiguous"]
    assert [window.steps for window in defaults] == [knob_session.ABORT_STEPS] * knob_planner.COMPARISONS


def test_a_neighbor_that_stalls_some_steps_is_as_costly_as_it_is(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_step, steps = clock.step, count()

    def step(context: TrainingContext) -> None:
        plain_step(context)
        if not context.adapters:
            clock.now += 3.0 * (next(steps) % 3 == 2)
        else:
            clock.now += 0.007  # slower than most steps with the defaults

    monkeypatch.setattr(clock, "step", step)
    record = train(open_session(context, clock, "probe"), context, clock)
    assert record.windows[-1].knobs.memory_format == "channels last"


def test_one_slow_step_says_nothing_about_a_setting(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_step, steps = clock.step, count()

    def step(context: TrainingContext) -> None:
        plain_step(context)
        clock.now += 0.02 * (bool(context.adapters) and next(steps) % 10 == 1)  # once in every window

    monkeypatch.setattr(clock, "step", step)
    record = train(open_session(context, clock, "probe"), context, clock)
    assert record.windows[-1].knobs.memory_format == "channels last"
    assert record.windows[-1].step_s == pytest.approx(0.005)


@pytest.mark.skipif(len(available_cores()) < 2, reason="one core has no threads to choose")
def test_a_neighbor_is_answered_after_few_slow_steps(
    context: TrainingContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(context, clock)
    train(session, context, clock, steps=400)
    plain_step = clock.step

    def step(context: TrainingContext) -> None:
        plain_step(context)
        clock.now += 0.5 * (torch.get_num_threads() > 1)  # a hundred times as long

    monkeypatch.setattr(clock, "step", step)
    record = train(session, context, clock, steps=400)
    slow = sum(window.steps for window in record.windows if window.step_s > 0.4)
    assert slow <= 20
    assert record.windows[-1].step_s == pytest.approx(0.005)


def test_a_job_without_a_choice_of_knobs_is_not_remembered(context: TrainingContext, clock: Clock) -> None:
    record = train(open_session(context, clock, knobs=[]), context, clock)
    assert record.profile is not None
    assert record.learned is None


def test_earlier_jobs_are_not_clustered_for_knobs_that_are_settled(context: TrainingContext, clock: Clock) -> None:
    session = open_session(context, clock)
    learned = learned_by(train(session, context, clock, steps=300))
    clustered = []

    def clusterer(points: Any) -> Any:
        clustered.append(len(points))
        return kmeans_labels(points)

    again = open_session(context, clock, remembered=[learned], settled=session.settled, clusterer=clusterer)
    train(again, context, clock)
    assert not clustered
    train(open_session(context, clock, remembered=[learned], clusterer=clusterer), context, clock)
    assert clustered == [1]


def test_threads_are_probed_by_a_trial_that_gets_more_cores_than_before(context: TrainingContext, clock: Clock) -> None:
    """A trial of which others ran beside it had one core until now."""
    clock.has_contention = True  # two threads are slower
    on_one_core = machine_description(replace(context, cores=context.cores[:1]))
    settled = SettledKnobs(on_one_core, Config(memory_format="channels last"), Phase.SETTLED)
    if len(context.cores) < 2:
        pytest.skip("one core has no threads to choose")
    session = open_session(context, clock, settled=settled, machine=machine_description(context))
    record = train(session, context, clock)
    assert session.settled is not None
    assert session.settled.setting.threads == 1
    assert session.settled.setting.memory_format == "channels last"
    again = open_session(context, clock, settled=session.settled, machine=machine_description(context))
    record_again = train(again, context, clock)
    assert any("more than one core" in note for note in record.notes)
    assert phases(record_again) == [Phase.SETTLED]
