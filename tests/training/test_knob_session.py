"""Knobs turned while a real network trains; only the clock is ours, so that which knob is faster is known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from onefold import meter
from onefold.training import knob_planner
from onefold.training import knob_session as module
from onefold.training.knob_session import Steering
from onefold.training.knobs import Job, arithmetic, catalogue
from onefold.training.knobs.processor import cores_here
from onefold.training.splits import Loading
from onefold.vocabulary.knobs import KnobWish, Phase, Profile, Remembered, Settled
from onefold.vocabulary.records import Config, Energy, Epoch, Measurement

BATCH = (torch.rand(4, 1, 8, 8), torch.arange(4) % 2)


class Clock:
    """Goes on by what a step costs with the knobs that stand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.neighbour = False
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def step(self, job: Job) -> None:
        cost = 0.010
        if job.adapters:  # channels last
            cost *= 0.5
        if torch.get_num_threads() > 1 and self.neighbour:
            cost *= 4
        if job.loading is not None and not job.loading.workers:
            cost *= 3  # to read a batch
        self.now += cost


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def job() -> Iterator[Job]:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    threads = torch.get_num_threads()
    torch.set_num_threads(len(cores_here()))
    yield Job(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.device("cpu"), cores_here())
    torch.set_num_threads(threads)


def steering_of(job: Job, mode: str = "on", **options) -> Steering:
    return Steering(job, KnobWish(mode), meter=meter.choose("cpu"), machine="here", **options)


def trained(steering: Steering, job: Job, clock: Clock, steps: int = 400, epoch: int = 1):
    for images, labels in steering.steered([BATCH] * steps):
        job.optimizer.zero_grad()
        nn.functional.cross_entropy(job.model(images), labels).backward()
        job.optimizer.step()
        clock.step(job)
    cost = Measurement(1.0, 1.0, Energy(None, "unavailable"))
    return steering.report(Epoch(0, epoch, 0, {}, cost))


def phases(report) -> list[Phase]:
    return list(dict.fromkeys(window.phase for window in report.windows))


def test_the_best_knobs_are_found_settled_on_and_learned(job, clock):
    steering = steering_of(job)
    report = trained(steering, job, clock)
    assert phases(report) == [Phase.FOUND, Phase.PROBED, Phase.SETTLED]
    assert report.windows[-1].knobs.memory_format == "channels last"
    assert report.windows[-1].step_s == pytest.approx(0.005)
    assert steering.settled is not None
    assert steering.settled.setting.memory_format == "channels last"
    assert report.learned is not None
    assert report.learned.gain == pytest.approx(2.0)
    assert report.learned.profile == report.profile
    assert any("probed" in note for note in report.notes)


def test_slow_reading_is_left_to_others(job, clock):
    job.loading = Loading()
    report = trained(steering_of(job), job, clock)
    assert report.windows[-1].knobs.loaders == 1
    assert report.learned.gain == pytest.approx(6.0)
    assert job.loading == Loading(), "and put back"


def test_everything_is_put_back_after_an_epoch(job, clock):
    threads = torch.get_num_threads()
    trained(steering_of(job), job, clock)
    assert job.adapters == []
    assert torch.get_num_threads() == threads
    assert all(parameter.is_contiguous() for parameter in job.model.parameters())


def test_everything_is_put_back_when_an_epoch_is_not_read_to_its_end(job, clock):
    steering = steering_of(job)
    for seen, _ in enumerate(steering.steered([BATCH] * 100)):
        clock.step(job)
        if seen == 60:
            break
    steering.put_back()
    assert job.adapters == []
    assert trained(steering, job, clock).windows


def test_what_was_settled_holds_in_the_next_epoch_and_rung_without_probing(job, clock):
    first = steering_of(job)
    trained(first, job, clock)
    assert phases(trained(first, job, clock, epoch=2)) == [Phase.SETTLED]
    second = steering_of(job, settled=first.settled)
    report = trained(second, job, clock)
    assert phases(report) == [Phase.SETTLED]
    assert report.windows[0].knobs.memory_format == "channels last"
    elsewhere = Steering(job, KnobWish("on"), meter=meter.choose("cpu"), machine="there", settled=first.settled)
    assert Phase.PROBED in phases(trained(elsewhere, job, clock))


def test_a_similar_job_recalls_and_probes_nothing(job, clock):
    learned = trained(steering_of(job), job, clock).learned
    report = trained(steering_of(job, remembered=[learned]), job, clock)
    assert phases(report) == [Phase.FOUND, Phase.RECALLED]
    assert report.windows[-1].step_s == pytest.approx(0.005)
    assert report.learned is None
    assert any("recalled" in note for note in report.notes)
    probing = trained(steering_of(job, "probe", remembered=[learned]), job, clock)
    assert Phase.PROBED in phases(probing)


def test_what_was_learned_for_another_aim_or_machine_is_not_recalled(job, clock):
    learned = trained(steering_of(job), job, clock).learned
    other = Remembered("there", "time", False, learned.profile, learned.knobs, 2.0, 1.0)
    assert Phase.PROBED in phases(trained(steering_of(job, remembered=[other]), job, clock))


def test_recall_alone_leaves_an_unknown_job_as_it_is(job, clock):
    far = Remembered("here", "time", False, Profile({"x": 9.0}, ()), Config(memory_format="channels last"), 2.0, 1.0)
    report = trained(steering_of(job, "recall", remembered=[far]), job, clock)
    assert phases(report) == [Phase.FOUND]
    assert job.adapters == []


@pytest.mark.skipif(len(cores_here()) < 2, reason="one core has no threads to choose")
def test_a_neighbour_that_comes_and_goes_is_answered_within_20_windows(job, clock):
    steering = steering_of(job)
    trained(steering, job, clock)
    assert torch.get_num_threads() > 1
    for neighbour, best in ((True, 0.005), (False, 0.005)):
        clock.neighbour = neighbour
        report = trained(steering, job, clock, steps=3000)
        if neighbour:
            assert any("probing again" in note for note in report.notes)
        back = next(i for i, window in enumerate(report.windows) if window.step_s <= best / 0.9)
        assert back <= 20


def test_a_network_that_does_not_run_with_a_knob_trains_without_it(clock):
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.linear = nn.Conv2d(1, 4, 3), nn.Linear(144, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.linear(self.convolution(images).view(len(images), -1))

    model = Views()
    job = Job(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.device("cpu"), cores_here())
    report = trained(steering_of(job), job, clock)
    assert any("does not run with memory_format" in note for note in report.notes)
    assert {window.knobs.memory_format for window in report.windows} == {"contiguous"}


@pytest.mark.parametrize("steps", [3, 12])
def test_windows_go_on_over_short_epochs(job, clock, steps):
    steering = steering_of(job)
    reports = [trained(steering, job, clock, steps=steps, epoch=epoch) for epoch in range(1, 80)]
    assert steering.settled is not None
    assert steering.settled.setting.memory_format == "channels last"
    assert sum(len(report.windows) for report in reports) > 6


def test_knobs_that_are_not_here_are_named(job, clock):
    report = trained(steering_of(job), job, clock)
    assert set(report.missing) == set(catalogue(job).missing)
    assert "precision" in report.missing


def test_a_hopeless_candidate_is_given_up_early(job, clock, monkeypatch):
    slow = clock.step

    def step(job: Job) -> None:
        slow(job)
        clock.now += 9.0 * bool(job.adapters)

    monkeypatch.setattr(clock, "step", step)
    report = trained(steering_of(job), job, clock)
    tried = [window for window in report.windows if window.knobs.memory_format == "channels last"]
    assert tried
    assert all(window.steps == module.HOPELESS for window in tried)
    assert report.windows[-1].knobs.memory_format == "contiguous"


def reducing(job: Job, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Steering:
    """Reduced precision that makes a step twice as fast, on any processor."""
    monkeypatch.setattr(arithmetic, "_processor_flags", lambda: {"bf16"})
    plain = clock.step

    def step(job: Job) -> None:
        before = clock.now
        plain(job)
        if torch.is_autocast_enabled("cpu"):
            clock.now = before + (clock.now - before) / 2

    monkeypatch.setattr(clock, "step", step)
    wish = KnobWish("probe", reduced=True)
    return Steering(job, wish, meter=meter.choose("cpu"), machine="here")


def test_reduced_precision_is_kept_where_the_loss_does_not_rise_also_when_a_neighbour_comes(job, clock, monkeypatch):
    steering = reducing(job, clock, monkeypatch)
    report = trained(steering, job, clock, steps=800)
    assert report.windows[-1].knobs.precision == "bfloat16"
    with steering.at_rest():
        assert not torch.is_autocast_enabled("cpu"), "scoring is exact"
    clock.neighbour = True
    report = trained(steering, job, clock, steps=2000)
    assert report.windows[-1].knobs.precision == "bfloat16"
    assert not any("raised the loss" in note for note in report.notes)


def test_reduced_precision_that_raises_the_loss_is_not_kept(job, clock, monkeypatch):
    monkeypatch.setattr(knob_planner, "are_as_good", lambda reduced, exact: not (reduced and exact))
    report = trained(reducing(job, clock, monkeypatch), job, clock, steps=800)
    assert report.windows[-1].knobs.precision == "float32"
    assert any("raised the loss" in note for note in report.notes)


def test_what_was_recalled_and_is_no_faster_here_is_probed(job, clock):
    learned = trained(steering_of(job), job, clock).learned
    slow = replace(learned, knobs=Config(learned.knobs, memory_format="contiguous", update="fused"))
    report = trained(steering_of(job, remembered=[slow]), job, clock)
    assert any("no faster here" in note for note in report.notes)
    assert report.windows[-1].knobs.memory_format == "channels last"
    assert report.learned is not None, "and replaces what was wrong"


def test_settled_knobs_that_cannot_be_turned_here_are_left_out(job, clock):
    settled = Settled("here", Config(memory_format="channels last", cores="977", compile="compiled"), Phase.SETTLED)
    report = trained(steering_of(job, settled=settled), job, clock)
    assert report.windows[-1].knobs.memory_format == "channels last"
    assert report.windows[-1].knobs.get("cores", "all") == "all"
    assert "compile" not in report.windows[-1].knobs


def test_batches_that_another_thread_reads_are_passed_on_as_they_are(job, clock):
    steering, read = steering_of(job), []
    reader = threading.Thread(target=lambda: read.extend(steering.steered([BATCH] * 30)))
    reader.start()
    reader.join()
    assert all(batch is BATCH for batch in read)
    assert steering.report(Epoch(0, 1, 0, {}, Measurement.nothing())).windows == ()


def test_many_windows_of_an_epoch_are_joined(job, clock):
    steering = steering_of(job)
    report = trained(steering, job, clock, steps=6000)
    assert len(report.windows) < module.MANY
    assert sum(window.steps for window in report.windows) > 5000
