"""The contract of every store about kernels: operators, schedule candidates and compilations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from onefold.store import CompilationRecord, Store
from onefold.vocabulary.kernels import (
    CandidateFailure,
    CompileCost,
    Operator,
    OperatorState,
    ScheduleCandidate,
    TuningRound,
)
from onefold.vocabulary.records import StudyState

PLACES = [  # implementation, operator and target
    ("a", "conv", "llvm"),
    ("b", "dense", "cuda"),
    ("c", "conv", "cuda"),
    ("d", "dense", "llvm"),
    ("e", "conv", "llvm"),
]


def an_operator(key: str = "conv", weight: int = 3) -> Operator:
    """Return a convolution."""
    return Operator(key, "fused_conv2d_add_relu", weight, "conv2d", ("1x32x32x3", "1x32x32x16"), 1.5e6)


def a_candidate(implementation: str = "loops", operator: str = "conv", target: str = "llvm") -> ScheduleCandidate:
    """Return a measured candidate."""
    trace = '[["SplitRV",{"b0":null}],["tile \\"x\\" → 8"]]'
    return ScheduleCandidate(
        operator, target, "a machine", 2, implementation, 1, (8, 4, -1), trace, 1e-4, None, 0.5, 0.25, 3.5
    )


def a_failed_candidate(failure: CandidateFailure, implementation: str = "loops") -> ScheduleCandidate:
    """Return a failed candidate without energy."""
    return replace(a_candidate(implementation), decisions=(), latency_s=None, failure=failure, joules=None)


def a_compilation(key: str = "c1", created: str = "2026-01-01T00:00:00+00:00", rounds: int = 0) -> CompilationRecord:
    """Return a running compilation after this many rounds."""
    spec = {"models": ["lenet"], "device": "here", "options": {"seconds": 1200, "joules": None, "flag": True}}
    ended = tuple(a_round(number) for number in range(1, rounds + 1))
    spent = CompileCost({"search": 1.0 * rounds})
    return CompilationRecord(key, created, StudyState.RUNNING, spec, ended, 2.5 * rounds, spent)


def a_round(number: int = 1) -> TuningRound:
    """Return a round in which one operator improved and another has no valid candidate."""
    fast = OperatorState(an_operator(), 1e-4, tried=8 * number, filtered=2, failed=1)
    stuck = OperatorState(an_operator("dense", 1), None, failed=4, suspended=True)
    spent = CompileCost({"search": 0.5, "build": 2.0}, {"search": 3.5}, "modelled")
    return TuningRound(number, "lenet", 0.01 / number, 2.5 * number, (fast, stuck), spent)


class KernelStoreContract:
    """The promises of KernelHistory, one test each."""

    @pytest.fixture
    def store(self) -> Store:
        """An empty store."""
        raise NotImplementedError("override the `store` fixture")

    # operators

    def test_operators_are_returned_by_key(self, store: Store) -> None:
        assert store.operators() == {}
        for key in ("dense", "conv"):
            store.save_operator(an_operator(key))
        assert store.operators() == {"conv": an_operator("conv"), "dense": an_operator("dense")}
        assert list(store.operators()) == ["conv", "dense"]

    def test_saving_an_operator_again_replaces_it(self, store: Store) -> None:
        for weight in (3, 7):
            store.save_operator(an_operator(weight=weight))
        assert store.operators() == {"conv": an_operator(weight=7)}

    def test_the_loops_of_an_operator_are_returned(self, store: Store) -> None:
        assert store.loops("conv") == ""
        store.save_operator(an_operator(), "for i in …")
        store.save_operator(an_operator("dense"))
        assert store.loops("conv") == "for i in …"
        assert store.loops("dense") == ""

    # candidates

    def test_candidates_are_returned_in_the_order_saved(self, store: Store) -> None:
        assert store.candidates() == []
        failed = [a_failed_candidate(failure, failure.name) for failure in CandidateFailure]
        saved = [a_candidate("z"), a_candidate("a", "dense"), *failed, a_candidate("m", target="cuda")]
        store.save_candidates(saved[:3])
        store.save_candidates(saved[3:])
        assert store.candidates() == saved
        assert [candidate.failure for candidate in store.candidates("conv", "llvm")[1:]] == list(CandidateFailure)

    def test_candidates_are_found_by_operator_and_target(self, store: Store) -> None:
        saved = [a_candidate(name, operator, target) for name, operator, target in PLACES]
        store.save_candidates(saved)
        assert store.candidates("conv") == [saved[0], saved[2], saved[4]]
        assert store.candidates(target="llvm") == [saved[0], saved[3], saved[4]]
        assert store.candidates("conv", "llvm") == [saved[0], saved[4]]
        assert store.candidates("dense", "cuda") == [saved[1]]
        assert store.candidates("pool") == store.candidates(target="") == store.candidates("") == []

    def test_a_candidate_saved_again_keeps_its_position(self, store: Store) -> None:
        names = ("first", "second", "third")
        store.save_candidates([a_candidate(name) for name in names])
        better = replace(a_candidate("second"), latency_s=5e-5, decisions=(16,), trace="[]", joules=None)
        failed = a_failed_candidate(CandidateFailure.WRONG, "first")
        store.save_candidates([better, a_candidate("fourth"), failed])
        assert store.candidates() == [failed, better, a_candidate("third"), a_candidate("fourth")]

    def test_the_last_of_equal_keys_in_a_batch_wins(self, store: Store) -> None:
        twin = replace(a_candidate("a"), latency_s=2e-4)
        store.save_candidates([a_candidate("a"), a_candidate("b"), twin])
        assert store.candidates() == [twin, a_candidate("b")]

    def test_other_conditions_make_another_candidate(self, store: Store) -> None:
        candidate = a_candidate()
        saved = [
            candidate,
            replace(candidate, machine="another"),
            replace(candidate, threads=1),
            replace(candidate, target="cuda"),
        ]
        store.save_candidates(saved)
        assert store.candidates() == saved

    def test_no_candidates_can_be_saved(self, store: Store) -> None:
        store.save_candidates([])
        store.save_candidates(())
        assert store.candidates() == []

    def test_a_batch_is_atomic(self, store: Store) -> None:
        # A set is not a JSON value, so this record cannot be written.
        broken = replace(a_candidate("broken"), decisions=({1, 2},))  # type: ignore[arg-type]
        store.save_candidates([a_candidate("known")])
        with pytest.raises(TypeError):
            store.save_candidates([a_candidate("new"), broken])
        assert store.candidates() == [a_candidate("known")]

    # compilations

    def test_a_compilation_is_replaced_after_each_round(self, store: Store) -> None:
        assert store.compilation("c1") is None
        for rounds in range(3):
            store.save_compilation(a_compilation(rounds=rounds))
            assert store.compilation("c1") == a_compilation(rounds=rounds)
        done = replace(a_compilation(rounds=2), state=StudyState.DONE, reason="the gain per second fell – by 30 %")
        store.save_compilation(done)
        assert store.compilations() == [done]
        assert store.compilation("c2") is None

    def test_compilations_are_returned_newest_first(self, store: Store) -> None:
        assert store.compilations() == []
        old, new = a_compilation("old"), a_compilation("new", "2026-01-02T00:00:00+00:00")
        twin = a_compilation("a twin of the old one")
        for record in (old, new, twin, old):  # saving again does not change the order
            store.save_compilation(record)
        assert store.compilations() == [new, twin, old]

    # together

    def test_a_transaction_commits_kernel_records_together(self, store: Store) -> None:
        with store.transaction():
            store.save_operator(an_operator())
            store.save_candidates([a_candidate()])
            store.save_compilation(a_compilation(rounds=1))
            assert store.candidates("conv") == [a_candidate()]
        assert store.operators() == {"conv": an_operator()}
        assert store.candidates() == [a_candidate()]
        assert store.compilations() == [a_compilation(rounds=1)]

    def test_a_transaction_rolls_kernel_records_back_together(self, store: Store) -> None:
        def save(changed: bool) -> None:
            store.save_operator(an_operator(weight=9 if changed else 3))
            store.save_candidates([replace(a_candidate(), latency_s=9.0 if changed else 1.0)])
            store.save_compilation(a_compilation(rounds=2 if changed else 1))

        def broken_block() -> None:
            with store.transaction():
                save(changed=True)
                store.save_candidates([a_candidate("new")])
                store.save_compilation(a_compilation("new"))
                raise ZeroDivisionError

        questions: list[Callable[[], object]] = [store.operators, store.candidates, store.compilations]
        save(changed=False)
        before = [question() for question in questions]
        with pytest.raises(ZeroDivisionError):
            broken_block()
        assert [question() for question in questions] == before
        store.save_candidates([a_candidate("new")])
        assert store.candidates()[1:] == [a_candidate("new")]
