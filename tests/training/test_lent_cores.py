"""Cores that the study lends to a trial are used while steps cost less with them, and left when they are taken back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from onefold import meter
from onefold.processes import available_cores, begin_run, pin_to_cores, record_loan
from onefold.training.core_loan import COSTLY_WINDOWS, RETRY_WINDOWS, CoreLoan
from onefold.training.knob_session import KnobSession
from onefold.training.knobs import TrainingContext
from onefold.vocabulary.knobs import KnobOptions, KnobRecord, Phase, SettledKnobs
from onefold.vocabulary.records import Config, Energy, Epoch, Measurement

RUN = 1
CORES = available_cores()
SETTLED = SettledKnobs("here", Config(), Phase.SETTLED)
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core leaves none to lend")


class Idle:
    """Reports no other processes."""

    def others_s(self) -> float:
        return 0.0


@pytest.fixture
def session() -> Iterator[KnobSession]:
    """Return the session of a trial on one core, whose knobs are settled."""
    threads = torch.get_num_threads()
    begin_run(RUN)
    pin_to_cores(CORES[:1])
    torch.set_num_threads(1)
    model = nn.Linear(4, 2)
    context = TrainingContext(model, torch.optim.SGD(model.parameters(), lr=0.1), CPU, tuple(CORES[:1]))
    options = KnobOptions("on")
    yield KnobSession(context, options, meter=meter.choose("cpu"), machine="here", settled=SETTLED, neighbors=Idle())
    record_loan(RUN, ())
    pin_to_cores(CORES)
    torch.set_num_threads(threads)


class Steps:
    """Takes steps whose simulated cost depends on the threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost_of_two: float) -> None:
        self.now, self.cost_of_two = 0.0, cost_of_two
        self.states: list[tuple[int, int]] = []  # threads and cores of each step
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def take(self, session: KnobSession, steps: int, take_back_at: int = -1) -> KnobRecord:
        for step, _ in enumerate(session.tuned(range(steps))):
            self.states.append((torch.get_num_threads(), len(os.sched_getaffinity(0))))
            self.now += 0.01 * (self.cost_of_two if torch.get_num_threads() > 1 else 1.0)
            if step == take_back_at:
                record_loan(RUN, ())
        return session.report(Epoch(0, 1, 0, {}, Measurement(1.0, 1.0, Energy(None, "unavailable"))))


def test_a_lent_core_is_used_if_it_makes_steps_cheaper(session: KnobSession, monkeypatch: pytest.MonkeyPatch) -> None:
    record_loan(RUN, CORES[1:2])
    steps = Steps(monkeypatch, cost_of_two=0.6)
    record = steps.take(session, 150)
    assert steps.states[0] == (1, 1)
    assert steps.states[-1] == (2, 2)
    assert {"threads": 2, "lent_cores": 1}.items() <= record.windows[-1].knobs.items()
    assert record.windows[-1].step_s == pytest.approx(0.006)
    assert any("lent 1 core" in note for note in record.notes)
    assert (torch.get_num_threads(), len(os.sched_getaffinity(0))) == (1, 1)  # after the epoch
    assert session.settled == SETTLED  # a later rung may have no lent core


def test_a_lent_core_is_left_alone_if_it_makes_no_step_cheaper(
    session: KnobSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_loan(RUN, CORES[1:2])
    steps = Steps(monkeypatch, cost_of_two=3.0)
    record = steps.take(session, 150)
    assert (2, 2) in steps.states
    assert steps.states[-1] == (1, 1)
    assert steps.states.count((2, 2)) < 10
    assert any("not used" in note for note in record.notes)


def test_a_core_that_is_taken_back_is_left_at_the_next_step(
    session: KnobSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_loan(RUN, CORES[1:2])
    steps = Steps(monkeypatch, cost_of_two=0.6)
    record = steps.take(session, 160, take_back_at=119)
    assert steps.states[119] == (2, 2)
    assert steps.states[120:] == [(1, 1)] * 40
    on_two = sum(window.steps for window in record.windows if "lent_cores" in window.knobs)
    assert on_two >= steps.states.count((2, 2)) - 2  # all but the warm-up, also those of the window that was cut off


def test_a_core_that_is_taken_back_is_left_within_an_evaluation(
    session: KnobSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_loan(RUN, CORES[1:2])
    Steps(monkeypatch, cost_of_two=0.6).take(session, 150)
    with session.for_evaluation():
        session.return_lent_cores()
        assert torch.get_num_threads() == 2
        record_loan(RUN, ())
        session.return_lent_cores()
        assert (torch.get_num_threads(), len(os.sched_getaffinity(0))) == (1, 1)


def test_what_was_lent_to_another_run_is_ignored(session: KnobSession, monkeypatch: pytest.MonkeyPatch) -> None:
    record_loan(RUN + 1, CORES[1:2])
    steps = Steps(monkeypatch, cost_of_two=0.6)
    steps.take(session, 60)
    assert set(steps.states) == {(1, 1)}


def test_the_number_of_lent_cores_is_the_cheapest_one() -> None:
    loan, costs = CoreLoan(lambda: range(4)), {0: 1.0, 4: 0.9, 2: 0.6, 1: 0.7}
    while loan.plan(1.0) != loan.in_use or loan.is_probing:
        cores = loan.plan(1.0)
        loan.observe(cores, costs[cores])
    assert loan.in_use == 2


def test_lent_cores_that_do_not_pay_any_more_are_tried_again_later() -> None:
    loan = CoreLoan(lambda: [1])
    loan.observe(loan.plan(1.0), 0.6)
    assert loan.plan(1.0) == 1
    for _ in range(COSTLY_WINDOWS):
        loan.observe(1, 1.2)
    for _ in range(RETRY_WINDOWS):
        assert loan.plan(1.0) == 0
        loan.observe(0, 1.0)
    assert loan.plan(1.0) == 1
