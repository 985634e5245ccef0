"""Every store passes the contract suite and returns any record unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore
from store_contract import StoreContract

from onefold.store import CompilationRecord, Store, StudyRecord, open_store
from onefold.vocabulary.kernels import (
    CandidateFailure,
    CompileCost,
    Operator,
    OperatorState,
    ScheduleCandidate,
    TuningRound,
)
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
    to_json,
)

KINDS = ("sqlite", "memory")


def opened(kind: str, folder: Path) -> Store:
    return open_store(folder / "studies.db") if kind == "sqlite" else MemoryStore()


@pytest.mark.parametrize("kind", KINDS)
class TestStores(StoreContract):
    @pytest.fixture
    def store(self, kind: str, tmp_path: Path) -> Iterator[Store]:
        store = opened(kind, tmp_path)
        yield store
        store.close()


any_text = st.text(max_size=8)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
seconds = st.floats(0, 1e12)
counts = st.integers(0, 2**53)
values = st.none() | st.booleans() | st.integers() | st.floats() | any_text
documents = st.dictionaries(
    any_text,
    st.recursive(values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner), max_leaves=4),
    max_size=3,
)
configs = st.dictionaries(any_text, values, max_size=5).map(Config)
metrics = st.dictionaries(any_text, st.floats(), max_size=4)
measurements = st.builds(
    Measurement,
    seconds,
    seconds,
    st.builds(Energy, st.none() | seconds, st.sampled_from(["rapl", "modelled", "unavailable"])),
    st.none() | counts,
)
grants = st.builds(Grant, counts, counts, seconds, st.none() | seconds, st.booleans())
failures = st.builds(Failure, st.sampled_from(FailureKind), any_text, any_text)
rungs = st.builds(
    Rung,
    decision=counts,
    trial=st.just(0),
    rung=counts,
    bracket=counts,
    grant=grants,
    threads=counts,
    state=st.sampled_from(RungState),
    metrics=metrics,
    measurement=measurements,
    failure=st.none() | failures,
    attempts=counts,
    started_s=st.none() | seconds,
    ended_s=st.none() | seconds,
)
refusals = st.builds(Refusal, configs, any_text)
trials = st.builds(
    Trial,
    number=st.just(0),
    config=configs,
    state=st.sampled_from(TrialState),
    rungs=st.lists(rungs, max_size=3, unique_by=lambda rung: rung.decision).map(
        lambda some: tuple(sorted(some, key=lambda rung: rung.decision))
    ),
    refusals=st.lists(refusals, max_size=2).map(tuple),
    redraws=st.integers(0, 9),
)
epochs = st.builds(Epoch, st.just(0), counts, counts, metrics, measurements)
studies = st.builds(
    StudyRecord, names, documents, st.just("2026-01-01"), st.sampled_from(StudyState), any_text, seconds, documents
)
whole = st.integers()
operators = st.builds(Operator, names, any_text, counts, any_text, st.lists(any_text, max_size=3).map(tuple), seconds)
candidates = st.builds(
    ScheduleCandidate,
    operator=names,
    target=names,
    machine=any_text,
    threads=counts,
    implementation=any_text,
    sketch=whole,
    decisions=st.lists(whole, max_size=5).map(tuple),
    trace=names,
    latency_s=st.none() | st.floats(),
    failure=st.none() | st.sampled_from(CandidateFailure),
    build_s=seconds,
    run_s=seconds,
    joules=st.none() | seconds,
)
spent = st.builds(CompileCost, st.dictionaries(any_text, seconds), st.dictionaries(any_text, seconds), any_text)
states = st.builds(OperatorState, operators, st.none() | seconds, counts, counts, counts, st.booleans())
rounds = st.builds(TuningRound, counts, any_text, seconds, seconds, st.lists(states, max_size=3).map(tuple), spent)
compilations = st.builds(
    CompilationRecord,
    names,
    st.just("2026-01-01"),
    st.sampled_from(StudyState),
    documents,
    st.lists(rounds, max_size=2).map(tuple),
    seconds,
    spent,
    any_text,
)


@pytest.fixture(scope="module")
def both_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Store]]:
    stores = [opened(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS]
    yield stores
    for store in stores:
        store.close()


@settings(max_examples=20, deadline=None)
@given(study=studies, trial=trials, epoch=epochs)
def test_any_record_of_a_study_is_read_back(
    both_stores: list[Store], study: StudyRecord, trial: Trial, epoch: Epoch
) -> None:
    for store in both_stores:
        with store.transaction():
            store.create_study(study)
            store.save_trial(study.name, trial)
            for rung in trial.rungs:
                store.save_rung(study.name, rung)
            store.save_epoch(study.name, epoch)
        result = store.study(study.name), store.trials(study.name), store.epochs(study.name)
        store.delete_study(study.name)
        # Compared as text: NaN does not equal itself, and 1 equals True and 1.0.
        assert repr(to_json(result)) == repr(to_json((study, [trial], [epoch])))


@settings(max_examples=20, deadline=None)
@given(
    operator=operators,
    saved=st.lists(candidates, max_size=4, unique_by=lambda candidate: candidate.key),
    record=compilations,
)
def test_any_record_of_a_compilation_is_read_back(
    both_stores: list[Store], operator: Operator, saved: list[ScheduleCandidate], record: CompilationRecord
) -> None:
    for store in both_stores:
        store.save_operator(operator)
        store.save_candidates(saved)
        store.save_compilation(record)
        known = {candidate.key: candidate for candidate in store.candidates()}
        back = (
            store.operators()[operator.key],
            [known[candidate.key] for candidate in saved],
            store.compilation(record.key),
        )
        assert repr(back) == repr((operator, saved, record))  # as text, as above
