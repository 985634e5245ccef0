"""Assignments and promotions for given results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.search.rung_scheduler import (
    RUNG_SCHEDULES,
    Idle,
    RungAssignment,
    RungScheduler,
    planned_work,
    rung_scheduler,
    work_of,
)
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import BudgetError
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import Grant, TrialState

LOWEST = Objective(minimize="loss")


def play(scheduler: RungScheduler, score: dict[int, float | None], window: int = 1) -> list[tuple[int, int, int]]:
    """Run a scheduler to its end with a fixed score per trial; return (trial, rung, level) of each assignment."""
    runs: list[tuple[int, int, int]] = []
    running: list[tuple[int, int]] = []
    trials = 0
    while True:
        assignment = scheduler.ask() if len(running) < window else Idle.WAIT
        if assignment is Idle.END:
            return runs
        if isinstance(assignment, RungAssignment):
            trial = assignment.trial
            if trial is None:
                trial, trials = trials, trials + 1
                scheduler.start(trial, assignment)
            runs.append((trial, assignment.rung, assignment.level))
            running.append((trial, assignment.rung))
        else:
            trial, rung = running.pop(0)
            value = score[trial]
            scheduler.tell(trial, rung, None if value is None else {"loss": value})


def test_halving_keeps_the_best_third_of_each_rung() -> None:
    budget = Budget(trials=9, max_epochs=9, min_data=1.0, eta=3)
    runs = play(rung_scheduler("halving", budget, LOWEST, [9]), {trial: float(-trial) for trial in range(9)})
    assert [trial for trial, rung, _ in runs if rung == 0] == list(range(9))
    assert [trial for trial, rung, _ in runs if rung == 1] == [8, 7, 6]
    assert [trial for trial, rung, _ in runs if rung == 2] == [8]
    assert sorted({level for _, _, level in runs}) == [1, 3, 9]


def test_promotions_fill_the_slots() -> None:
    budget = Budget(trials=27, max_epochs=9, min_data=1.0, eta=3)
    runs = play(rung_scheduler("halving", budget, LOWEST, [27], slots=2), {trial: float(trial) for trial in range(27)})
    assert [sum(rung == at for _, rung, _ in runs) for at in range(3)] == [27, 8, 2]
    runs = play(rung_scheduler("halving", budget, LOWEST, [9], slots=2), {trial: float(trial) for trial in range(9)})
    assert [sum(rung == at for _, rung, _ in runs) for at in range(3)] == [9, 2, 1]
    runs = play(rung_scheduler("halving", budget, LOWEST, [12], slots=2), {trial: float(trial) for trial in range(12)})
    assert [sum(rung == at for _, rung, _ in runs) for at in range(3)] == [12, 4, 2]


def test_failed_trials_are_not_promoted_and_have_the_state_failed() -> None:
    budget = Budget(trials=3, max_epochs=3, min_data=1.0)
    scheduler = rung_scheduler("halving", budget, LOWEST, [3])
    runs = play(scheduler, {0: None, 1: 5.0, 2: None})
    assert [trial for trial, rung, _ in runs if rung == 1] == [1]
    states = {trial: scheduler.state(trial) for trial in scheduler.changed()}
    assert states == {0: TrialState.FAILED, 1: TrialState.DONE, 2: TrialState.FAILED}
    assert not scheduler.changed()


def test_the_schedule_ends_when_all_trials_fail() -> None:
    runs = play(rung_scheduler("halving", Budget(trials=4), LOWEST, [4]), dict.fromkeys(range(4)))
    assert len(runs) == 4


def test_top_k_trains_all_briefly_and_then_k_fully() -> None:
    budget = Budget(trials=10, kind="epochs", max_epochs=9)
    runs = play(rung_scheduler("top-k", budget, LOWEST, [10], top_k=2), {trial: float(trial) for trial in range(10)})
    assert [level for _, rung, level in runs if rung == 0] == [1] * 10
    assert [(trial, level) for trial, rung, level in runs if rung == 1] == [(0, 9), (1, 9)]


def by_arms(
    arms: list[tuple[int, ...]],
    score: dict[int, float | None],
    top_k: int = 2,
    pairs: Sequence[Sequence[tuple[int, int]]] = (),
) -> list[int]:
    """Return the promoted trials in the order of their assignments."""
    budget = Budget(trials=len(score), kind="epochs", max_epochs=9)
    runs = play(rung_scheduler("top-k", budget, LOWEST, [len(score)], top_k=top_k, arms=arms, pairs=pairs), score)
    assert [(trial, level) for trial, rung, level in runs if rung == 0] == [(trial, 1) for trial in score]
    return [trial for trial, rung, level in runs if (rung, level) == (1, 9)]


def test_the_best_of_each_arm_are_promoted_and_shared_ones_once() -> None:
    score: dict[int, float | None] = {trial: float(-trial) for trial in range(8)}
    assert by_arms([(0, 1, 2, 3), (4, 5), (6,)], score) == [3, 2, 5, 4, 6]  # trial 7 is in no arm
    assert by_arms([(0, 1, 2, 3), (2, 3, 4), (0, 3)], score) == [3, 2, 4, 0]
    assert by_arms([tuple(range(8))], score) == by_arms([], score) == [7, 6]


def test_an_arm_whose_trials_all_failed_promotes_none() -> None:
    score = {0: 1.0, 1: None, 2: None, 3: 2.0, 4: None}
    assert by_arms([(0, 1), (1, 2), (2, 3, 4)], score) == [0, 3]
    assert by_arms([(1,), (2, 4)], dict.fromkeys(score)) == []


def test_the_pairs_with_the_best_trials_of_either_side_are_promoted() -> None:
    score: dict[int, float | None] = {trial: float(-trial) for trial in range(6)}
    arms, pairs = [(0, 1, 2), (3, 4, 5)], [(), [(3, 0), (4, 1), (5, 2)]]
    # 2 is the best of its arm, 5 of the other: they are a pair.
    assert by_arms(arms, score, 1, pairs) == [2, 5]
    score[5] = 9.0  # now 4 is, in a pair with 1; 5 is with 2
    assert by_arms(arms, score, 1, pairs) == [2, 4, 1, 5]
    score[5] = None  # 2 has nothing to be compared with, but 1 has
    assert by_arms(arms, score, 1, pairs) == [2, 4, 1]
    # The best of the arm is in no pair: the best of those that are in one are compared.
    assert by_arms(arms, score, 1, [(), [(3, 0)]]) == [2, 4, 3, 0]


@pytest.mark.parametrize("rungs", [name for name in RUNG_SCHEDULES if name != "top-k"])
def test_arms_need_top_k(rungs: str) -> None:
    with pytest.raises(BudgetError, match="top-k"):
        rung_scheduler(rungs, Budget(), LOWEST, [4], arms=[(0, 1), (2, 3)])


def test_without_rungs_every_trial_gets_the_full_budget() -> None:
    runs = play(rung_scheduler("none", Budget(trials=3), LOWEST, [3]), {0: 1.0, 1: 2.0, 2: 3.0})
    assert runs == [(0, 0, 9), (1, 0, 9), (2, 0, 9)]


def test_hyperband_has_a_bracket_for_every_number_of_halvings() -> None:
    budget = Budget(trials=22, max_epochs=9, kind="epochs", eta=3)
    runs = play(rung_scheduler("hyperband", budget, LOWEST, [22]), {trial: float(trial) for trial in range(22)})
    first_levels = [level for _, rung, level in runs if rung == 0]
    assert sum(rung == 0 for _, rung, _ in runs) == 22
    assert {1, 3, 9} <= set(first_levels)


def test_asynchronous_halving_promotes_without_waiting() -> None:
    budget = Budget(trials=9, max_epochs=9, kind="epochs")
    runs = play(rung_scheduler("asha", budget, LOWEST, [9]), {trial: float(trial) for trial in range(9)})
    promoted_at = next(index for index, (_, rung, _) in enumerate(runs) if rung == 1)
    last_start = max(index for index, (_, rung, _) in enumerate(runs) if rung == 0)
    assert promoted_at < last_start
    assert max(level for _, _, level in runs) == 9


def test_unknown_rungs_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(BudgetError, match="did you mean 'halving'"):
        rung_scheduler("halfing", Budget(), LOWEST, [3])


scores = st.lists(st.one_of(st.none(), st.floats(-1e3, 1e3)), min_size=1, max_size=40)


@settings(max_examples=50)
@given(rungs=st.sampled_from(RUNG_SCHEDULES), values=scores, window=st.integers(1, 6), eta=st.integers(2, 4))
def test_every_schedule_ends_repeats_no_rung_and_gives_one_trial_the_full_budget(
    rungs: str, values: list[float | None], window: int, eta: int
) -> None:
    budget = Budget(trials=len(values), eta=eta)
    runs = play(rung_scheduler(rungs, budget, LOWEST, [len(values)]), dict(enumerate(values)), window)
    assert len({(trial, rung) for trial, rung, _ in runs}) == len(runs)
    assert {trial for trial, rung, _ in runs if rung == 0} == set(range(len(values)))
    if any(value is not None for value in values):
        assert max(level for _, _, level in runs) == budget.top_level
    for trial, rung, _ in runs:
        if rung > 0:
            assert values[trial] is not None


@settings(max_examples=50)
@given(values=scores, window=st.integers(1, 6), extra=st.integers(1, 9), rungs=st.sampled_from(RUNG_SCHEDULES))
def test_an_extension_changes_nothing_that_was_decided_before(
    values: list[float | None], window: int, extra: int, rungs: str
) -> None:
    score = dict(enumerate([*values, *[0.5] * extra]))
    first = play(rung_scheduler(rungs, Budget(), LOWEST, [len(values)]), score, window)
    both = play(rung_scheduler(rungs, Budget(), LOWEST, [len(values), extra]), score, window)
    assert both[: len(first)] == first
    assert {trial for trial, _, _ in both} == set(score)


def test_planned_work_of_halving_counts_what_each_rung_adds() -> None:
    budget = Budget(trials=9, kind="epochs", max_epochs=9, eta=3)
    assert planned_work("halving", budget, [9]) == 9 * 1 + 3 * 2 + 1 * 6


def test_planned_work_is_in_seconds_where_seconds_are_granted() -> None:
    budget = Budget(trials=9, kind="time", max_epochs=1000, min_time_s=1.0, max_time_s=9.0, eta=3)
    assert planned_work("halving", budget, [9]) == 9 * 1 + 3 * 2 + 1 * 6
    assert planned_work("halving", replace(budget, fresh=True), [9]) == 9 * 1 + 3 * 3 + 1 * 9


def test_rungs_that_train_from_scratch_are_planned_in_full() -> None:
    budget = Budget(trials=9, kind="epochs", max_epochs=9, eta=3)
    assert planned_work("halving", budget, [9], from_scratch=True) == 9 * 1 + 3 * 3 + 1 * 9


def test_the_work_of_a_rung_is_what_it_adds() -> None:
    assert work_of(Grant(3, 3, 0.5)) == 1.5
    assert work_of(Grant(3, 3, 0.5), Grant(1, 1, 0.25)) == 1.0
    assert work_of(Grant(3, 1000, 1.0, time_s=9.0), Grant(1, 1000, 1.0, time_s=3.0)) == 6.0


def test_a_bracket_does_not_share_the_last_idle_worker_if_its_core_is_lent() -> None:
    """Hyperband with two workers: the only trial of the second bracket would take half of the machine."""
    budget = Budget(trials=9, max_epochs=9)

    def brackets(*, lends_cores: bool) -> list[int]:
        scheduler = rung_scheduler("hyperband", budget, LOWEST, [9], slots=2, lends_cores=lends_cores)
        running: list[tuple[int, int]] = []
        order, trials = [], 0
        while True:
            assignment = scheduler.ask() if len(running) < 2 else Idle.WAIT
            if isinstance(assignment, RungAssignment):
                trial = trials if assignment.trial is None else assignment.trial
                if assignment.trial is None:
                    scheduler.start(trial, assignment)
                    trials += 1
                running.append((trial, assignment.rung))
                order.append(assignment.bracket)
            elif running:
                trial, rung = running.pop(0)
                scheduler.tell(trial, rung, {"loss": float(trial)})
            else:
                return order

    assert brackets(lends_cores=True) == sorted(brackets(lends_cores=True))
    assert brackets(lends_cores=False) != sorted(brackets(lends_cores=False))


def test_the_last_rungs_of_all_brackets_run_side_by_side_with_no_others() -> None:
    budget = Budget(trials=9, max_epochs=9, kind="epochs", eta=2)
    scheduler = rung_scheduler("hyperband", budget, LOWEST, [9])
    trials, last = 0, None
    while (assignment := scheduler.ask()) is not Idle.END:
        assert isinstance(assignment, RungAssignment)
        trial = trials if assignment.trial is None else assignment.trial
        if assignment.trial is None:
            scheduler.start(trial, assignment)
            trials += 1
        scheduler.tell(trial, assignment.rung, {"loss": float(trial)})
        last = assignment
    assert last is not None
    assert last.side_by_side == 1
