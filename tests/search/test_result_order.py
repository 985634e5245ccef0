"""Results are learned in an order that is planned from the work of the rungs."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import Budget, Float, Objective, Space
from onefold.search import RUNG_SCHEDULES, ResultsBy, Search, work_of
from onefold.search.result_order import ResultOrder
from onefold.vocabulary.records import Grant

SLOTS = 2


def order_of(works: list[float], slots: int) -> list[int]:
    """Return the order in which the results of rungs are learned that are all decided at once."""
    order = ResultOrder(slots)
    for decision, work in enumerate(works):
        order.add(decision, work)
    learned = []
    while (decision := order.next) is not None:
        order.learn_next()
        learned.append(decision)
    return learned


@given(st.integers(0, 30), st.integers(1, 8))
def test_rungs_of_the_same_work_are_learned_in_the_order_of_their_decisions(count: int, slots: int) -> None:
    assert order_of([1.0] * count, slots) == list(range(count))


@given(st.lists(st.floats(0.0, 100.0), max_size=30), st.integers(1, 8))
def test_every_result_is_learned_once(works: list[float], slots: int) -> None:
    assert sorted(order_of(works, slots)) == list(range(len(works)))


def test_a_long_rung_is_learned_after_the_short_ones_that_end_before_it() -> None:
    assert order_of([1.0, 9.0, 1.0, 1.0, 1.0], 2) == [0, 2, 3, 4, 1]


def test_a_rung_does_not_start_before_the_results_that_its_decision_has_learned() -> None:
    order = ResultOrder(2)
    order.add(0, 5.0)
    order.learn_next()
    order.add(1, 1.0)  # from 5 to 6, although a slot has been free all the time
    order.add(2, 0.5)
    assert order.next == 2


def makespan_of(rungs: str, results_by: ResultsBy) -> float:
    """Return how long a search takes on two workers where a rung takes as long as its work."""
    budget = Budget(trials=9, max_epochs=9, kind="epochs", eta=2)
    objective = Objective(minimize="x")
    search = Search(
        Space(x=Float(0, 1)), objective=objective, budget=budget, rungs=rungs, algorithm="random",
        window=2 * SLOTS, slots=SLOTS, results_by=results_by,
    )  # fmt: skip
    now, running, grants = 0.0, list[tuple[float, int, float]](), dict[int, Grant]()
    while not search.is_finished:
        while len(running) < SLOTS and (decision := search.ask()) is not None:
            work = work_of(decision.grant, grants.get(decision.trial))
            grants[decision.trial] = decision.grant
            heappush(running, (now + work, decision.number, decision.config.x))
        if running:
            now, number, x = heappop(running)
            search.tell(number, {"x": x})
    return now


@pytest.mark.parametrize("rungs", RUNG_SCHEDULES)
def test_long_rungs_hold_back_no_short_ones(rungs: str) -> None:
    assert makespan_of(rungs, "work") <= makespan_of(rungs, "number")


def test_hyperband_keeps_its_workers_busy() -> None:
    assert makespan_of("hyperband", "work") <= 0.85 * makespan_of("hyperband", "number")
