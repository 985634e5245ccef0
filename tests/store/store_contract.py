"""The contract of Store as a test suite. Subclass StoreContract with a `store` fixture that returns an empty store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from kernel_store_contract import KernelStoreContract

from onefold.store import Attempt, AttemptOutcome, EpochCount, Job, Store, StudyRecord
from onefold.vocabulary.errors import StoreError, StudyNotFound
from onefold.vocabulary.knobs import JobProfile, KnobMemory, KnobRecord, Phase, StepWindow
from onefold.vocabulary.moment import Moment
from onefold.vocabulary.records import (
    Config,
    Energy,
    Epoch,
    Failure,
    FailureKind,
    Grant,
    Measurement,
    Refusal,
    Rung,
    RungState,
    StudyState,
    Trial,
    TrialState,
)
from onefold.vocabulary.retraining import MemoryLesson, RetrainingPlan
from onefold.vocabulary.serving import LatencySource, Served, ServingPoint, Surface

COST = Measurement(1.5, 2.25, Energy(3.75, "modelled"), 123_456_789)


def a_study(name: str = "digits", created: str = "2026-01-01T00:00:00+00:00") -> StudyRecord:
    """Return a study that has just begun."""
    return StudyRecord(name, {"seed": 7, "space": {"lr": [0.1, 1.0]}, "none": None, "flag": True}, created)


def a_trial(number: int = 0, *rungs: Rung) -> Trial:
    """Return a running trial with these rungs."""
    return Trial(number, Config(lr=0.1, width=16, optimizer="adam", bias=True, extra=None), rungs=rungs)


def a_rung(decision: int = 0, trial: int = 0, rung: int = 1) -> Rung:
    """Return a rung that was decided."""
    return Rung(decision, trial, rung, bracket=0, grant=Grant(level=rung, epochs=rung, data=0.5, time_s=9.5))


def an_epoch(number: int = 1, trial: int = 0, rung: int = 1, accuracy: float = 0.5) -> Epoch:
    """Return an epoch with its cost."""
    return Epoch(trial, number, rung, {"accuracy": accuracy, "loss": 0.25}, COST)


def a_surface() -> Surface:
    """Return a surface with two serving points."""
    measured = Served(
        ServingPoint(), 0.01, 0.012, 0.02, 0.009, 0.011, 40, Energy(0.5, "modelled"), 10**8, LatencySource.EMULATED
    )
    predicted = replace(
        measured, point=ServingPoint(batch_size=8, threads=2), latency_s=0.04, source=LatencySource.PREDICTED
    )
    return Surface(
        "abc", "pi", (measured, predicted), size_bytes=4321, parameters=1000, measured_s=0.25, notes=("a note",)
    )


def a_knob_record(trial: int = 0, epoch: int = 1) -> KnobRecord:
    """Return the record of an epoch in which knobs were probed."""
    result, best = Config(threads=2, memory_format="contiguous"), Config(threads=2, memory_format="channels last")
    windows = (StepWindow(Phase.FOUND, result, 5, 0.01, None), StepWindow(Phase.PROBED, best, 5, 0.005, 0.03))
    return KnobRecord(trial, 1, epoch, windows, a_memory().profile, a_memory(), ("probed",), {"compile": "too long"})


def a_memory(machine: str = "a machine") -> KnobMemory:
    """Return the best knobs of a job."""
    profile = JobProfile({"convolution_share": 0.5, "log_flops": 4.25}, ("operators", "process"))
    return KnobMemory(machine, "time", False, profile, Config(threads=1), 0.01, 0.005)


def a_lesson(batch_size: int = 8, machine: str = "a machine", model: str = "abc") -> MemoryLesson:
    """Return the lesson of a retraining plan."""
    return MemoryLesson(machine, model, RetrainingPlan(batch_size, 4, freeze_rate=0.5, segments=2), 10**8, 11 * 10**7)


class StoreContract(KernelStoreContract):
    """The promises of `Store`, one test each; those of `KernelHistory` are in `kernel_store_contract`."""

    @pytest.fixture
    def store(self) -> Store:
        """Return an empty store."""
        raise NotImplementedError("override the `store` fixture")

    # studies

    def test_a_study_is_read_back(self, store: Store) -> None:
        store.create_study(a_study())
        assert store.study("digits") == a_study()

    def test_a_name_can_be_used_once(self, store: Store) -> None:
        store.create_study(a_study())
        with pytest.raises(StoreError, match="already"):
            store.create_study(a_study(created="2027-01-01T00:00:00+00:00"))
        assert store.studies() == [a_study()]

    def test_saving_a_study_replaces_it_and_keeps_its_trials(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial())
        ended = StudyRecord(
            "digits", {"seed": 7}, a_study().created, StudyState.DONE, "enough trials – 200", 12.5, {"trial": 3}
        )
        store.save_study(ended)
        assert store.study("digits") == ended
        assert store.trials("digits") == [a_trial()]

    def test_studies_are_listed_newest_first(self, store: Store) -> None:
        old, new = a_study("old", "2026-01-01T00:00:00+00:00"), a_study("new", "2026-01-02T00:00:00+00:00")
        twin = a_study("twin", "2026-01-01T00:00:00+00:00")
        for study in (old, new, twin):
            store.create_study(study)
        assert store.studies() == [new, twin, old]

    def test_an_empty_store_has_no_studies(self, store: Store) -> None:
        assert store.studies() == []

    def test_an_unknown_study_is_an_error_with_the_nearest_name(self, store: Store) -> None:
        store.create_study(a_study())
        actions: list[Callable[[], object]] = [
            lambda: store.study("digit"),
            lambda: store.trials("digit"),
            lambda: store.epochs("digit"),
            lambda: store.epoch_counts("digit"),
            lambda: store.save_study(a_study("digit")),
            lambda: store.save_trial("digit", a_trial()),
            lambda: store.save_rung("digit", a_rung()),
            lambda: store.save_epoch("digit", an_epoch()),
            lambda: store.set_trial_states("digit", {0: TrialState.DONE}),
            lambda: store.delete_study("digit"),
        ]
        for action in actions:
            with pytest.raises(StudyNotFound, match="did you mean 'digits'"):
                action()
        assert store.studies() == [a_study()]

    def test_deleting_removes_one_study_only(self, store: Store) -> None:
        for name in ("digits", "other"):
            store.create_study(a_study(name))
            store.save_trial(name, a_trial())
            store.save_rung(name, a_rung())
            store.save_epoch(name, an_epoch())
        store.delete_study("digits")
        assert store.studies() == [a_study("other")]
        assert store.trials("other") == [a_trial(0, a_rung())]
        store.create_study(a_study("digits"))
        assert store.trials("digits") == []
        assert store.epochs("digits") == []

    # trials and rungs

    def test_a_trial_is_read_back(self, store: Store) -> None:
        store.create_study(a_study())
        refusal = Refusal(Config(lr=0.2), "too wide")
        trial = Trial(4, Config(lr=0.1, depth=3), TrialState.WAITING, refusals=(refusal,), redraws=3)
        store.save_trial("digits", trial)
        assert store.trials("digits") == [trial]

    def test_trials_are_ordered_by_number_and_rungs_by_decision(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial(1))
        store.save_trial("digits", a_trial(0))
        later, first, other = a_rung(5, 1, 2), a_rung(1, 1, 1), a_rung(3, 0, 1)
        for rung in (later, first, other):
            store.save_rung("digits", rung)
        assert store.trials("digits") == [a_trial(0, other), a_trial(1, first, later)]

    def test_saving_a_trial_again_replaces_it_and_keeps_its_rungs(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial())
        store.save_rung("digits", a_rung())
        store.save_trial("digits", Trial(0, Config(lr=0.7), TrialState.DONE))
        assert store.trials("digits") == [Trial(0, Config(lr=0.7), TrialState.DONE, rungs=(a_rung(),))]

    def test_the_rungs_inside_a_trial_are_not_saved_with_it(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial(0, a_rung()))
        assert store.trials("digits") == [a_trial()]

    def test_saving_a_rung_again_replaces_it(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial())
        store.save_rung("digits", a_rung())
        failure = Failure(FailureKind.OUT_OF_MEMORY, "wanted 9 GB", "Traceback …")
        metrics = {"accuracy": 0.5}
        ended = Rung(0, 0, 1, 2, Grant(1, 2, 0.5), 4, RungState.FAILED, metrics, COST, failure, 2, 1.5, 2.5)
        store.save_rung("digits", ended)
        assert store.trials("digits") == [a_trial(0, ended)]

    def test_setting_states_changes_these_trials_only(self, store: Store) -> None:
        store.create_study(a_study())
        for number in range(3):
            store.save_trial("digits", a_trial(number))
        store.set_trial_states("digits", {0: TrialState.STOPPED, 2: TrialState.DONE})
        states = [trial.state for trial in store.trials("digits")]
        assert states == [TrialState.STOPPED, TrialState.RUNNING, TrialState.DONE]
        assert {trial.config for trial in store.trials("digits")} == {a_trial().config}

    def test_setting_no_states_is_fine(self, store: Store) -> None:
        store.set_trial_states("digits", {})

    def test_states_are_set_all_or_none(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial(0))
        with pytest.raises(StoreError, match="no trial 7"):
            store.set_trial_states("digits", {0: TrialState.DONE, 7: TrialState.DONE})
        assert store.trials("digits") == [a_trial(0)]

    def test_a_trial_must_be_saved_before_what_belongs_to_it(self, store: Store) -> None:
        store.create_study(a_study())
        writes: list[Callable[[], None]] = [
            lambda: store.save_rung("digits", a_rung(trial=3)),
            lambda: store.save_epoch("digits", an_epoch(trial=3)),
            lambda: store.set_trial_states("digits", {3: TrialState.DONE}),
        ]
        for write in writes:
            with pytest.raises(StoreError, match="no trial 3"):
                write()

    def test_studies_are_independent(self, store: Store) -> None:
        for name in ("one", "other"):
            store.create_study(a_study(name))
        store.save_trial("one", a_trial())
        store.save_rung("one", a_rung())
        store.save_epoch("one", an_epoch())
        assert store.trials("other") == []
        assert store.epochs("other") == []

    # epochs

    def test_epochs_are_ordered_by_trial_rung_and_number(self, store: Store) -> None:
        store.create_study(a_study())
        for number in (0, 1):
            store.save_trial("digits", a_trial(number))
        ordered = [an_epoch(1, 0, 1), an_epoch(2, 0, 1), an_epoch(1, 0, 2), an_epoch(1, 1, 1), an_epoch(10, 1, 1)]
        for epoch in reversed(ordered):
            store.save_epoch("digits", epoch)
        assert store.epochs("digits") == ordered
        assert store.epochs("digits", 1) == ordered[3:]
        assert store.epochs("digits", 9) == []

    def test_epochs_are_counted_by_rung(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial(0))
        store.save_trial("digits", a_trial(1))
        for epoch in (an_epoch(1, 0, 0), an_epoch(2, 0, 0), an_epoch(3, 1, 0), an_epoch(7, 0, 1)):
            store.save_epoch("digits", epoch)
        counts = {(0, 0): EpochCount(2, 2), (0, 1): EpochCount(1, 7), (1, 0): EpochCount(1, 3)}
        assert store.epoch_counts("digits") == counts

    def test_a_known_epoch_is_not_replaced(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial())
        store.save_epoch("digits", an_epoch(accuracy=0.5))
        store.save_epoch("digits", an_epoch(accuracy=0.9))
        assert store.epochs("digits") == [an_epoch(accuracy=0.5)]

    # transactions

    def test_a_transaction_is_kept(self, store: Store) -> None:
        store.create_study(a_study())
        with store.transaction():
            store.save_trial("digits", a_trial())
            store.save_rung("digits", a_rung())
            assert store.trials("digits") == [a_trial(0, a_rung())]
        assert store.trials("digits") == [a_trial(0, a_rung())]

    def test_a_transaction_that_raises_is_rolled_back_and_the_error_propagates(self, store: Store) -> None:
        def failing() -> None:
            with store.transaction():
                store.save_trial("digits", a_trial())
                raise ZeroDivisionError

        store.create_study(a_study())
        with pytest.raises(ZeroDivisionError):
            failing()
        assert store.trials("digits") == []
        store.save_trial("digits", a_trial())
        assert store.trials("digits") == [a_trial()]

    def test_a_failed_write_rolls_back_the_transaction(self, store: Store) -> None:
        def failing() -> None:
            with store.transaction():
                store.save_trial("digits", a_trial())
                store.save_trial("nothing", a_trial())

        store.create_study(a_study())
        with pytest.raises(StudyNotFound):
            failing()
        assert store.trials("digits") == []

    def test_a_transaction_whose_failure_was_caught_is_rolled_back_and_raises(self, store: Store) -> None:
        def suppressing() -> None:
            with store.transaction():
                store.save_trial("digits", a_trial(0))
                with suppress(StudyNotFound):
                    store.save_trial("nothing", a_trial(1))
                store.save_trial("digits", a_trial(2))

        store.create_study(a_study())
        with pytest.raises(StoreError, match="rolled back"):
            suppressing()
        assert store.trials("digits") == []

    def test_inner_transactions_join_the_outer_one(self, store: Store) -> None:
        store.create_study(a_study())
        with store.transaction():
            store.save_trial("digits", a_trial(0))
            with store.transaction():
                store.save_trial("digits", a_trial(1))
            store.save_trial("digits", a_trial(2))
        assert [trial.number for trial in store.trials("digits")] == [0, 1, 2]

    def test_an_inner_transaction_is_rolled_back_with_the_outer_one(self, store: Store) -> None:
        def failing() -> None:
            with store.transaction():
                with store.transaction():
                    store.save_trial("digits", a_trial())
                raise ZeroDivisionError

        store.create_study(a_study())
        with pytest.raises(ZeroDivisionError):
            failing()
        assert store.trials("digits") == []

    def test_an_empty_transaction_is_fine(self, store: Store) -> None:
        with store.transaction(), store.transaction():
            pass
        assert store.studies() == []

    # serving history

    def test_surfaces_are_read_back_and_replaced(self, store: Store) -> None:
        assert store.surface("k") is None
        store.save_surface("k", a_surface())
        assert store.surface("k") == a_surface()
        store.save_surface("k", replace(a_surface(), size_bytes=9))
        assert store.surface("k") == replace(a_surface(), size_bytes=9)

    def test_trials_share_surfaces_and_know_which_were_recalled(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial(0))
        store.save_trial("digits", a_trial(1))
        store.save_surface("k", a_surface())
        store.link_surface("digits", 1, "pi", "k", recalled=True)
        store.link_surface("digits", 0, "pi", "k", recalled=False)
        surfaces = store.trial_surfaces("digits")
        assert list(surfaces) == [(0, "pi"), (1, "pi")]
        assert surfaces[0, "pi"] == a_surface()
        assert surfaces[1, "pi"] == replace(a_surface(), recalled=True)

    def test_an_archived_surface_is_measured_anew_and_kept_by_its_trials(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial(0))
        store.save_surface("k", a_surface())
        store.save_surface("unused", a_surface())
        store.link_surface("digits", 0, "pi", "k", recalled=False)
        for key in ("k", "unused", "unknown"):
            store.archive_surface(key)
        assert store.surfaces() == {}
        assert store.surface("k") is None
        store.save_surface("k", replace(a_surface(), size_bytes=9))
        assert store.trial_surfaces("digits") == {(0, "pi"): a_surface()}
        assert store.surfaces() == {"k": replace(a_surface(), size_bytes=9)}

    def test_a_surface_of_an_unknown_trial_is_refused(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_surface("k", a_surface())
        with pytest.raises(StoreError, match="trial"):
            store.link_surface("digits", 7, "pi", "k", recalled=False)

    def test_surfaces_outlive_the_study_that_measured_them(self, store: Store) -> None:
        store.create_study(a_study())
        store.save_trial("digits", a_trial(0))
        store.save_surface("k", a_surface())
        store.link_surface("digits", 0, "pi", "k", recalled=False)
        store.delete_study("digits")
        assert store.surface("k") == a_surface()
        store.create_study(a_study())
        assert store.trial_surfaces("digits") == {}

    # knob and retraining history, queue

    def test_knob_records_are_ordered_by_trial_and_epoch(self, store: Store) -> None:
        store.create_study(a_study())
        for number in (0, 1):
            store.save_trial("digits", a_trial(number))
        for record in (a_knob_record(1, 1), a_knob_record(0, 2), a_knob_record(0, 1)):
            store.save_knob_record("digits", record)
        store.save_knob_record("digits", replace(a_knob_record(0, 1), windows=()))  # known already
        assert store.knob_records("digits") == [a_knob_record(0, 1), a_knob_record(0, 2), a_knob_record(1, 1)]
        store.delete_study("digits")
        store.create_study(a_study())
        assert store.knob_records("digits") == []

    def test_knob_memories_are_shared_and_kept_once_per_job(self, store: Store) -> None:
        assert store.knob_memories() == []
        better = replace(a_memory(), reached=0.004)
        for memory in (a_memory("b"), a_memory(), better):
            store.save_knob_memory(memory)
        assert store.knob_memories() == [better, a_memory("b")]

    def test_lessons_are_read_by_machine_oldest_first(self, store: Store) -> None:
        assert store.lessons("a machine") == []
        lessons = [a_lesson(8), a_lesson(2), a_lesson(4), a_lesson(8, model="another")]
        for lesson in (lessons[0], a_lesson(machine="b"), *lessons[1:]):
            store.save_lesson(lesson)
        assert store.lessons("a machine") == lessons
        assert store.lessons("b") == [a_lesson(machine="b")]
        assert store.lessons("c") == []

    def test_a_replaced_lesson_becomes_the_newest(self, store: Store) -> None:
        for batch_size in (2, 4, 8):
            store.save_lesson(a_lesson(batch_size))
        again = replace(a_lesson(2), measured_bytes=12)
        store.save_lesson(again)
        assert store.lessons("a machine") == [a_lesson(4), a_lesson(8), again]
        whole = replace(a_lesson(4), plan=replace(a_lesson(4).plan, freeze_rate=0.0))
        for rate in (0.0, 0):
            store.save_lesson(replace(whole, plan=replace(whole.plan, freeze_rate=rate)))
        assert store.lessons("a machine") == [a_lesson(4), a_lesson(8), again, whole]

    def test_lessons_are_rolled_back_with_their_transaction_and_outlive_studies(self, store: Store) -> None:
        def failing() -> None:
            with store.transaction():
                store.save_lesson(replace(a_lesson(), measured_bytes=12))
                raise ZeroDivisionError

        store.create_study(a_study())
        for batch_size in (8, 2):
            store.save_lesson(a_lesson(batch_size))
        with pytest.raises(ZeroDivisionError):
            failing()
        store.delete_study("digits")
        assert store.lessons("a machine") == [a_lesson(8), a_lesson(2)]

    def test_the_queue_is_in_the_order_of_submission_whatever_the_clock_says(self, store: Store) -> None:
        for name in ("digits", "other"):
            store.create_study(a_study(name))
        first, second = Job("digits", Moment(20.0, "b", 1.0), "ann", "/here"), Job("other", Moment(10.0, "b", 2.0))
        for job in (first, second):
            store.add_job(job)
        assert store.jobs() == store.jobs(is_open=True) == [first, second]
        store.end_job("digits", Moment(5.0, "b", 4.5))
        ended = replace(first, ended=Moment(5.0, "b", 4.5))
        assert store.jobs() == [ended, second]
        assert store.jobs(is_open=True) == [second]
        assert (store.job("digits"), store.job("nobody")) == (ended, None)
        assert (ended.response_s, second.response_s) == (3.5, None)
        store.add_job(first)  # submitted again
        assert store.jobs() == [second, first]
        store.delete_study("digits")
        assert store.jobs() == [second]
        with pytest.raises(StudyNotFound):
            store.add_job(first)

    def test_a_job_has_attempts(self, store: Store) -> None:
        store.create_study(a_study())
        attempt = Attempt("digits", 1, "a-b-c-1-2", 2, 0, Moment(1.0, "b", 1.0), Moment(1.0, "b", 1.0))
        with pytest.raises(StudyNotFound):
            store.save_attempt(replace(attempt, study="nobody"))
        store.add_job(Job("digits", Moment(0.0)))
        store.save_attempt(attempt)
        job = store.job("digits")
        assert job is not None
        assert (job.attempt, job.began) == (attempt, attempt.began)
        lost = replace(attempt, ended=Moment(3.0, "b", 3.0), outcome=AttemptOutcome.LOST)
        second = replace(attempt, number=2, heartbeat=Moment(4.0, "b", 4.0))
        for each in (lost, second):
            store.save_attempt(each)
        (job,) = store.jobs(is_open=True)
        assert (job.attempts, job.attempt) == ((lost, second), second)
        store.add_job(Job("digits", Moment(9.0)))
        (job,) = store.jobs()
        assert job.attempts == ()
        store.save_attempt(attempt)
        store.delete_study("digits")
        assert store.jobs() == []

    def test_shares_are_replaced_together(self, store: Store) -> None:
        assert store.shares() == {}
        store.save_shares({"ann": 2.0, "bob": 1.0})
        store.save_shares({"bob": 0.5})
        assert store.shares() == {"bob": 0.5}

    def test_closing_twice_is_fine(self, store: Store) -> None:
        store.close()
        store.close()
