"""Rungs and promotion on hand-made results."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.search.ladder import LADDERS, Ladder, Move, Pause, ladder, planned_work, work_of
from onefold.vocabulary.errors import BudgetError
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Grant, TrialState

LOWEST = Objective(minimize="loss")


def climb(found: Ladder, score: dict[int, float | None], window: int = 1) -> list[tuple[int, int, int]]:
    """Plays a ladder to its end with a fixed score per trial; returns (trial, rung, level) of each visit."""
    visits: list[tuple[int, int, int]] = []
    under_way: list[tuple[int, int]] = []
    started = 0
    while True:
        move = found.move() if len(under_way) < window else Pause.WAIT
        if move is Pause.END:
            return visits
        if isinstance(move, Move):
            trial = move.trial
            if trial is None:
                trial, started = started, started + 1
                found.started(trial, move)
            visits.append((trial, move.rung, move.level))
            under_way.append((trial, move.rung))
        else:
            trial, rung = under_way.pop(0)
            value = score[trial]
            found.tell(trial, rung, None if value is None else {"loss": value})


def test_halving_keeps_the_best_third_of_each_rung() -> None:
    budget = Budget(trials=9, max_epochs=9, min_data=1.0, eta=3)
    visits = climb(ladder("halving", budget, LOWEST, [9]), {trial: float(-trial) for trial in range(9)})
    assert [trial for trial, rung, _ in visits if rung == 0] == list(range(9))
    assert [trial for trial, rung, _ in visits if rung == 1] == [8, 7, 6]
    assert [trial for trial, rung, _ in visits if rung == 2] == [8]
    assert sorted({level for _, _, level in visits}) == [1, 3, 9]


def test_promotions_fill_the_slots() -> None:
    budget = Budget(trials=27, max_epochs=9, min_data=1.0, eta=3)
    visits = climb(ladder("halving", budget, LOWEST, [27], slots=2), {trial: float(trial) for trial in range(27)})
    assert [sum(rung == at for _, rung, _ in visits) for at in range(3)] == [27, 8, 2]
    visits = climb(ladder("halving", budget, LOWEST, [9], slots=2), {trial: float(trial) for trial in range(9)})
    assert [sum(rung == at for _, rung, _ in visits) for at in range(3)] == [9, 2, 1]
    visits = climb(ladder("halving", budget, LOWEST, [12], slots=2), {trial: float(trial) for trial in range(12)})
    assert [sum(rung == at for _, rung, _ in visits) for at in range(3)] == [12, 4, 2]


def test_failed_trials_are_never_promoted_and_say_so() -> None:
    budget = Budget(trials=3, max_epochs=3, min_data=1.0)
    found = ladder("halving", budget, LOWEST, [3])
    visits = climb(found, {0: None, 1: 5.0, 2: None})
    assert [trial for trial, rung, _ in visits if rung == 1] == [1]
    assert found.states() == {0: TrialState.FAILED, 1: TrialState.DONE, 2: TrialState.FAILED}


def test_when_all_fail_the_ladder_ends() -> None:
    visits = climb(ladder("halving", Budget(trials=4), LOWEST, [4]), dict.fromkeys(range(4)))
    assert len(visits) == 4


def test_top_k_trains_everybody_a_little_and_then_k_to_the_end() -> None:
    budget = Budget(trials=10, kind="epochs", max_epochs=9)
    visits = climb(ladder("top-k", budget, LOWEST, [10], top_k=2), {trial: float(trial) for trial in range(10)})
    assert [level for _, rung, level in visits if rung == 0] == [1] * 10
    assert [(trial, level) for trial, rung, level in visits if rung == 1] == [(0, 9), (1, 9)]


def by_arms(arms: list[tuple[int, ...]], score: dict[int, float | None], top_k: int = 2) -> list[int]:
    """Who goes on to the end, in the order of the visits."""
    budget = Budget(trials=len(score), kind="epochs", max_epochs=9)
    visits = climb(ladder("top-k", budget, LOWEST, [len(score)], top_k=top_k, arms=arms), score)
    assert [(trial, level) for trial, rung, level in visits if rung == 0] == [(trial, 1) for trial in score]
    return [trial for trial, rung, level in visits if (rung, level) == (1, 9)]


def test_the_best_of_each_arm_go_on_and_what_arms_share_goes_on_once() -> None:
    score: dict[int, float | None] = {trial: float(-trial) for trial in range(8)}
    assert by_arms([(0, 1, 2, 3), (4, 5), (6,)], score) == [3, 2, 5, 4, 6]  # nobody asks for trial 7
    assert by_arms([(0, 1, 2, 3), (2, 3, 4), (0, 3)], score) == [3, 2, 4, 0]
    assert by_arms([tuple(range(8))], score) == by_arms([], score) == [7, 6]


def test_an_arm_whose_trials_all_failed_sends_nobody() -> None:
    score = {0: 1.0, 1: None, 2: None, 3: 2.0, 4: None}
    assert by_arms([(0, 1), (1, 2), (2, 3, 4)], score) == [0, 3]
    assert by_arms([(1,), (2, 4)], dict.fromkeys(score)) == []


@pytest.mark.parametrize("rungs", [name for name in LADDERS if name != "top-k"])
def test_arms_are_for_the_best_k(rungs: str) -> None:
    with pytest.raises(BudgetError, match="where the rungs are top-k"):
        ladder(rungs, Budget(), LOWEST, [4], arms=[(0, 1), (2, 3)])


def test_no_rungs_means_the_full_budget_at_once() -> None:
    visits = climb(ladder("none", Budget(trials=3), LOWEST, [3]), {0: 1.0, 1: 2.0, 2: 3.0})
    assert visits == [(0, 0, 9), (1, 0, 9), (2, 0, 9)]


def test_hyperband_has_a_bracket_for_every_number_of_halvings() -> None:
    budget = Budget(trials=22, max_epochs=9, kind="epochs", eta=3)
    visits = climb(ladder("hyperband", budget, LOWEST, [22]), {trial: float(trial) for trial in range(22)})
    first_levels = [level for _, rung, level in visits if rung == 0]
    assert sum(rung == 0 for _, rung, _ in visits) == 22
    assert {1, 3, 9} <= set(first_levels)


def test_asynchronous_halving_promotes_without_waiting() -> None:
    budget = Budget(trials=9, max_epochs=9, kind="epochs")
    visits = climb(ladder("asha", budget, LOWEST, [9]), {trial: float(trial) for trial in range(9)})
    promoted_at = next(place for place, (_, rung, _) in enumerate(visits) if rung == 1)
    last_start = max(place for place, (_, rung, _) in enumerate(visits) if rung == 0)
    assert promoted_at < last_start
    assert max(level for _, _, level in visits) == 9


def test_unknown_rungs_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(BudgetError, match="did you mean 'halving'"):
        ladder("halfing", Budget(), LOWEST, [3])


scores = st.lists(st.one_of(st.none(), st.floats(-1e3, 1e3)), min_size=1, max_size=40)


@given(rungs=st.sampled_from(LADDERS), values=scores, window=st.integers(1, 6), eta=st.integers(2, 4))
def test_every_ladder_ends_visits_nothing_twice_and_brings_one_to_the_top(
    rungs: str, values: list[float | None], window: int, eta: int
) -> None:
    budget = Budget(trials=len(values), eta=eta)
    visits = climb(ladder(rungs, budget, LOWEST, [len(values)]), dict(enumerate(values)), window)
    assert len({(trial, rung) for trial, rung, _ in visits}) == len(visits)
    assert {trial for trial, rung, _ in visits if rung == 0} == set(range(len(values)))
    if any(value is not None for value in values):
        assert max(level for _, _, level in visits) == budget.top_level
    for trial, rung, _ in visits:
        if rung > 0:
            assert values[trial] is not None


@given(values=scores, window=st.integers(1, 6), extra=st.integers(1, 9), rungs=st.sampled_from(LADDERS))
def test_an_extension_changes_nothing_that_was_decided_before(
    values: list[float | None], window: int, extra: int, rungs: str
) -> None:
    score = dict(enumerate([*values, *[0.5] * extra]))
    first = climb(ladder(rungs, Budget(), LOWEST, [len(values)]), score, window)
    both = climb(ladder(rungs, Budget(), LOWEST, [len(values), extra]), score, window)
    assert both[: len(first)] == first
    assert {trial for trial, _, _ in both} == set(score)


def test_planned_work_of_halving_counts_what_each_rung_adds() -> None:
    budget = Budget(trials=9, kind="epochs", max_epochs=9, eta=3)
    assert planned_work("halving", budget, [9]) == 9 * 1 + 3 * 2 + 1 * 6


def test_planned_work_is_in_seconds_where_seconds_are_granted() -> None:
    budget = Budget(trials=9, kind="time", max_epochs=1000, min_time_s=1.0, max_time_s=9.0, eta=3)
    assert planned_work("halving", budget, [9]) == 9 * 1 + 3 * 2 + 1 * 6
    assert planned_work("halving", replace(budget, fresh=True), [9]) == 9 * 1 + 3 * 3 + 1 * 9


def test_visits_that_begin_from_nothing_are_planned_as_a_whole() -> None:
    budget = Budget(trials=9, kind="epochs", max_epochs=9, eta=3)
    assert planned_work("halving", budget, [9], afresh=True) == 9 * 1 + 3 * 3 + 1 * 9


def test_the_work_of_a_visit_is_what_it_adds() -> None:
    assert work_of(Grant(3, 3, 0.5)) == 1.5
    assert work_of(Grant(3, 3, 0.5), Grant(1, 1, 0.25)) == 1.0
    assert work_of(Grant(3, 1000, 1.0, time_s=9.0), Grant(1, 1000, 1.0, time_s=3.0)) == 6.0
