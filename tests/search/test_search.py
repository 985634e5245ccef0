"""The search is deterministic in any order of results, resumable and extendable."""

from __future__ import annotations

import random
from collections.abc import Sequence

import playing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold import Budget, Choice, Config, Float, Int, Objective, Rejected, Space
from onefold.search import RUNG_SCHEDULES, Decision, Observation, ResultsBy, Search
from onefold.vocabulary.errors import BudgetError, ObjectiveError, SpaceError, WorkloadError
from onefold.vocabulary.records import Metrics

SPACE = Space(
    model=dict(width=Int(1, 64, log=True)), training=dict(lr=Float(1e-4, 1.0, log=True), kind=Choice("a", "b"))
)
LOWEST = Objective(minimize="loss")


def truth(decision: Decision) -> Metrics | None:
    """Return a result that depends only on the configuration and the level; some fail."""
    config = decision.config
    if config.digest.startswith("0"):
        return None
    return {"loss": abs(config.lr - 0.01) + 1 / config.width + 1 / decision.grant.level, "size": float(config.width)}


def play(search: Search, rng: random.Random, past: Sequence[Decision] = ()) -> list[Decision]:
    return playing.play(search, rng, truth, past)


def make(rungs: str = "halving", algorithm: str = "random", **options: object) -> Search:
    options = {"budget": Budget(trials=14), "objective": LOWEST, "window": 4, "slots": 2, "seed": 3, **options}
    return Search(SPACE, algorithm=algorithm, rungs=rungs, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("rungs", RUNG_SCHEDULES)
@pytest.mark.parametrize("algorithm", ["random", "tpe", "nsga2"])
def test_decisions_do_not_depend_on_which_result_comes_first(rungs: str, algorithm: str) -> None:
    runs = [play(make(rungs, algorithm), random.Random(seed)) for seed in range(3)]
    assert runs[0] == runs[1] == runs[2]


@settings(deadline=None, max_examples=8)
@given(
    rungs=st.sampled_from(RUNG_SCHEDULES),
    algorithm=st.sampled_from(["random", "tpe", "cmaes"]),
    results_by=st.sampled_from(["number", "work"]),
    share=st.floats(0, 1),
    order=st.integers(),
)
def test_a_replayed_search_makes_the_same_decisions(
    rungs: str, algorithm: str, results_by: ResultsBy, share: float, order: int
) -> None:
    undisturbed = play(make(rungs, algorithm, results_by=results_by), random.Random(order))
    past = undisturbed[: round(share * len(undisturbed))]
    assert play(make(rungs, algorithm, results_by=results_by), random.Random(order + 1), past) == undisturbed


def test_the_window_bounds_the_running_decisions() -> None:
    search = make(window=3)
    assert [search.ask() is not None for _ in range(4)] == [True, True, True, False]
    search.tell(1, {"loss": 0.0})
    assert search.ask() is None  # decision 3 must see the result of decision 0 and no other
    search.tell(0, {"loss": 0.0})
    assert search.ask() is not None


def test_rejected_draws_are_replaced_and_remembered() -> None:
    def check(config: Config) -> None:
        if config.kind == "a":
            raise Rejected("a is out of fashion")

    made = play(make(check=check), random.Random(0))
    assert {decision.config.kind for decision in made} == {"b"}
    refusals = [refusal for decision in made for refusal in decision.refusals]
    assert refusals
    assert {refusal.reason for refusal in refusals} == {"a is out of fashion"}


def test_a_workload_that_rejects_everything_is_an_error() -> None:
    def check(config: Config) -> None:
        raise Rejected("never")

    with pytest.raises(SpaceError, match=r"refused 200 configurations in a row.*never"):
        make(check=check).ask()


def test_a_check_that_raises_is_reported_with_its_error_and_the_configuration() -> None:
    def check(config: Config) -> None:
        if config.momentum > 0.9:
            raise Rejected("too much")

    with pytest.raises(WorkloadError, match=r"may only raise Rejected.*AttributeError.*'momentum'.*Config\(width="):
        make(check=check).ask()


def test_a_check_that_raises_is_reported_on_one_line() -> None:
    def check(config: Config) -> None:
        raise ValueError("first\nsecond" if config.kind == "a" else "")

    for kind, ending in (("a", "raised ValueError: first for Config"), ("b", "raised ValueError for Config")):
        space = Space(kind=kind, lr=Float(0.1, 1.0))
        with pytest.raises(WorkloadError, match=ending):
            Search(space, objective=LOWEST, check=check).ask()


def test_no_configuration_is_tried_twice_and_a_small_space_ends_the_search() -> None:
    space = Space(x=Choice(1, 2, 3), y=Choice("u", "v"))
    for algorithm in ("random", "grid", "tpe"):
        search = Search(space, objective=LOWEST, algorithm=algorithm, rungs="none", budget=Budget(trials=50), seed=1)
        configs = []
        while (decision := search.ask()) is not None:
            configs.append(decision.config)
            search.tell(decision.number, {"loss": float(decision.config.x)})
        assert len(configs) == len(set(configs)) == 6, algorithm
        assert search.is_finished


def test_defaults_are_tried_first() -> None:
    space = Space(lr=Float(1e-4, 1.0, log=True, default=0.05), kind=Choice("a", "b", default="b"))
    decision = Search(space, objective=LOWEST, seed=5).ask()
    assert decision is not None
    assert decision.config == Config(lr=0.05, kind="b")


FIRST = [SPACE.draw(random.Random(seed)) for seed in (4, 2, 9)]


@pytest.mark.parametrize("algorithm", ["random", "tpe", "cmaes", "grid"])
def test_given_configurations_are_tried_first_in_their_order_and_not_again(algorithm: str) -> None:
    def search() -> Search:
        return make("none", algorithm, first=FIRST, budget=Budget(trials=8))

    made = play(search(), random.Random(0))
    configs = [decision.config for decision in made]
    assert configs[:3] == FIRST
    assert len(set(configs)) == len(configs) == 8
    assert play(search(), random.Random(1), made[:5]) == made


def test_defaults_do_not_come_before_given_configurations() -> None:
    space = Space(lr=Float(1e-4, 1.0, log=True, default=0.05), kind=Choice("a", "b", default="b"))
    search = Search(space, objective=LOWEST, seed=5, first=[Config(lr=0.5, kind="a")], window=4)
    configs = [decision.config for _ in range(4) if (decision := search.ask()) is not None]
    assert configs[0] == Config(lr=0.5, kind="a")
    assert Config(lr=0.05, kind="b") not in configs


def test_a_search_with_arms_does_not_depend_on_which_result_comes_first() -> None:
    arms = [(0, 1, 2), (2, 3), (4, 5, 6, 7)]
    options = dict(rungs="top-k", arms=arms, top_k=1, budget=Budget(trials=8))
    runs = [play(make(**options), random.Random(seed)) for seed in range(3)]  # type: ignore[arg-type]
    assert runs[0] == runs[1] == runs[2]
    on = {decision.trial for decision in runs[0] if decision.rung == 1}
    able = {decision.trial for decision in runs[0] if decision.rung == 0 and truth(decision) is not None}
    assert all(len(on & set(arm)) >= (1 if able & set(arm) else 0) for arm in arms)
    assert on <= able


def test_a_warm_start_tries_the_best_known_first_and_repeats_none() -> None:
    known = [Observation(-1 - i, 9, SPACE.draw(random.Random(i)), (float(i),)) for i in range(20)]
    search = make(algorithm="tpe", warm_start=known)
    made = play(search, random.Random(0))
    assert made[0].config == known[0].config
    others = {decision.config for decision in made if decision.trial > 0}
    assert not others & {observation.config for observation in known}


def test_several_goals_are_halved_by_fronts() -> None:
    both = Objective(minimize=("loss", "size"))
    made = play(make(objective=both, algorithm="tpe"), random.Random(0))
    assert {decision.grant.level for decision in made} == set(Budget().levels())


def test_an_unreported_metric_is_an_error_that_names_the_known_ones() -> None:
    search = make(objective=Objective(maximize="acuracy"))
    search.ask()
    with pytest.raises(ObjectiveError, match="did you mean 'accuracy'"):
        search.tell(0, {"accuracy": 0.5, "loss": 1.0})


def test_invalid_input_is_rejected() -> None:
    with pytest.raises(SpaceError, match="empty"):
        Search(Space(), objective=LOWEST)
    with pytest.raises(BudgetError, match="window"):
        make(window=0)
    with pytest.raises(BudgetError, match="no decision 3"):
        make().tell(3, {"loss": 1.0})
