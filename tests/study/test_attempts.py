"""Who owns a job, and whether they live."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.processes.clock import now
from onefold.processes.identity import this_process
from onefold.store import Attempt, AttemptOutcome, Job, Store, StudyRecord
from onefold.store.home import Home
from onefold.study.attempts import LEASE_S, Liveness, beat, begin_attempt, deaths_without_progress, end_attempt

ELSEWHERE = str(replace(this_process(), host="other"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Home(tmp_path).store()) as store:
        store.create_study(StudyRecord("a", {}, "2026-01-01"))
        store.add_job(Job("a", now()))
        yield store


def begun(store: Store, owner: str) -> Attempt:
    attempt = begin_attempt(store, "a", owner, 1)
    assert attempt is not None
    return attempt


def test_an_owner_that_was_replaced_owns_nothing_any_more(store: Store) -> None:
    first = begun(store, ELSEWHERE)
    assert begun(store, ELSEWHERE) == first
    assert beat(store, first)
    second = begun(store, str(this_process()))
    assert second.number == 2
    assert not beat(store, first)
    assert not end_attempt(store, first, AttemptOutcome.DONE)
    job = store.job("a")
    assert job is not None
    assert [attempt.outcome for attempt in job.attempts] == [AttemptOutcome.LOST, None]
    assert end_attempt(store, second, AttemptOutcome.DONE)
    assert begin_attempt(store, "a", ELSEWHERE, 1) is None
    assert store.jobs(is_open=True) == []


def test_an_owner_elsewhere_lives_while_its_heartbeat_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, liveness, started_s = begun(store, ELSEWHERE), Liveness(), time.monotonic()
    for passed_s, heartbeat, is_alive in (
        (0.0, 1.0, True),
        (LEASE_S - 1, 1.0, True),
        (LEASE_S + 1, 0.5, True),  # whatever the other clock says
        (2 * LEASE_S, 0.5, True),
        (2 * LEASE_S + 2, 0.5, False),
    ):
        monkeypatch.setattr(time, "monotonic", lambda passed_s=passed_s: started_s + passed_s)
        beaten = replace(attempt, heartbeat=replace(attempt.heartbeat, wall_s=heartbeat))
        assert liveness.is_alive(beaten) is is_alive
    assert not liveness.is_alive(replace(attempt, owner=str(replace(this_process(), start="1"))))
    assert liveness.is_alive(replace(attempt, owner=str(this_process())))


def test_deaths_count_if_they_cost_no_epoch_and_the_machine_ran_on(store: Store) -> None:
    boot = now().boot
    died = replace(begun(store, ELSEWHERE), ended=now(), outcome=AttemptOutcome.LOST)
    with_the_machine = replace(died, began=replace(died.began, boot="earlier"))
    after_progress = replace(died, epochs=4)
    job = Job("a", now(), attempts=(died, after_progress, after_progress))
    assert deaths_without_progress(job, 4, boot) == 2
    assert deaths_without_progress(job, 5, boot) == 0
    assert deaths_without_progress(replace(job, attempts=(died, with_the_machine, died)), 0, boot) == 2
