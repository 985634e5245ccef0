"""Forks: scored for the last checkpoint of a trial, trained late within their share, promoted within their recipe."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

import playing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold import Budget, Choice, Float, Int, Objective, Recipe, Space
from onefold.search import RUNG_SCHEDULES, Decision, ForkPlan, Search, work_of
from onefold.search.forking import PROMOTED
from onefold.vocabulary.forks import Fork, dense_config, fork_of
from onefold.vocabulary.records import Config, Metrics, TrialState

SPACE = Space(width=Int(1, 64, log=True), lr=Float(1e-4, 1.0, log=True), kind=Choice("a", "b"))
LOWEST = Objective(minimize="loss")
BOTH = Objective(minimize=("loss", "size"))
INT8, SPARSE, NARROW = Recipe(precision="int8"), Recipe(sparsity=0.8), Recipe(channels=0.5, precision="int8")
PLAN = ForkPlan((INT8,), ((SPARSE, 2), (NARROW, 3)), 0.5)


def truth(decision: Decision) -> Metrics | None:
    """Return a result that depends only on the configuration and the level; some fail, forks too."""
    config = decision.config
    if config.digest.startswith("0"):
        return None
    fork = fork_of(config)
    size = config.width * (1.0 if fork is None else 0.25 if fork.recipe.channels else 0.5)
    return {"loss": abs(config.lr - 0.01) + 1 / size + 1 / decision.grant.epochs, "size": float(size)}


def sound(decision: Decision) -> Metrics:
    """Return a result as `truth` does, and a poor one instead of a failure."""
    return truth(decision) or {"loss": 9.0, "size": 9.0}


def make(rungs: str = "halving", plan: ForkPlan | None = PLAN, **options: object) -> Search:
    options = {
        "budget": Budget(trials=14),
        "objective": LOWEST,
        "window": 4,
        "seed": 3,
        "algorithm": "random",
        **options,
    }
    return Search(SPACE, rungs=rungs, forks=plan, **options)  # type: ignore[arg-type]


def play(
    search: Search, rng: random.Random, past: Sequence[Decision] = (), result: playing.Truth = truth
) -> list[Decision]:
    return playing.play(search, rng, result, past)


def forks(decisions: list[Decision]) -> list[tuple[Decision, Fork]]:
    return [(decision, fork) for decision in decisions if (fork := fork_of(decision.config)) is not None]


def test_a_fork_is_named_by_its_configuration() -> None:
    parent = Config(lr=0.1, channels=3)
    fork = Fork(7, Recipe.of({"channels": 0.5, "precision": "int8", "rank": 0.25}))
    config = fork.config(parent)
    assert config == {
        "lr": 0.1, "channels": 3, "compress_of": 7,
        "compress_channels": 0.5, "compress_precision": "int8", "compress_rank": 0.25,
    }  # fmt: skip
    assert fork_of(config) == fork
    assert dense_config(config) == parent
    assert fork_of(parent) is None
    assert str(Fork(7, NARROW)) == "50% fewer channels, int8 of trial 7"


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(RUNG_SCHEDULES), st.integers(0, 99), st.integers(1, 5), st.floats(0, 0.9), st.booleans())
def test_decisions_depend_on_results_alone_and_can_be_replayed(
    rungs: str, seed: int, window: int, share: float, several: bool
) -> None:
    plan = ForkPlan(PLAN.scored, PLAN.trained, share)
    options = {"window": window, "seed": seed, "objective": BOTH if several else LOWEST}
    first, second = (play(make(rungs, plan, **options), random.Random(order)) for order in (1, 2))
    assert first == second
    cut = random.Random(seed).randrange(len(first) + 1)
    assert play(make(rungs, plan, **options), random.Random(3), first[:cut]) == first


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(RUNG_SCHEDULES), st.sampled_from(["random", "tpe"]), st.integers(0, 99))
def test_forks_change_nothing_about_dense_trials(rungs: str, algorithm: str, seed: int) -> None:
    options = {"window": 1, "seed": seed, "algorithm": algorithm}
    with_forks = play(make(rungs, **options), random.Random(0))
    dense = [decision for decision in with_forks if fork_of(decision.config) is None]
    numbers: dict[int, int] = {}
    of = [(numbers.setdefault(d.trial, len(numbers)), d.config, d.rung, d.grant) for d in dense]
    plain = play(make(rungs, None, **options), random.Random(0))
    assert of == [(decision.trial, decision.config, decision.rung, decision.grant) for decision in plain]


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(RUNG_SCHEDULES), st.integers(0, 99), st.floats(0, 0.9))
def test_forks_keep_to_their_share(rungs: str, seed: int, share: float) -> None:
    search = make(rungs, ForkPlan(PLAN.scored, PLAN.trained, share), seed=seed)
    trained = of_forks = 0.0
    latest: dict[int, Decision] = {}
    for decision in play(search, random.Random(seed)):
        fork, before = fork_of(decision.config), latest.get(decision.trial)
        if fork is None:
            trained += work_of(decision.grant, before.grant if before is not None else None)
            latest[decision.trial] = decision
            continue
        parent = latest[fork.parent]
        epochs = decision.grant.epochs - parent.grant.epochs if fork.recipe != INT8 else 0
        if epochs:
            of_forks += epochs
            assert of_forks <= share * (of_forks + trained) + 1e-9
            assert epochs == dict(PLAN.trained)[fork.recipe] * (PROMOTED if decision.rung else 1)
            assert parent.grant.level == decision.grant.level == search.budget.top_level


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(RUNG_SCHEDULES), st.integers(0, 99))
def test_the_last_checkpoint_of_every_dense_trial_is_scored_once(rungs: str, seed: int) -> None:
    decisions = play(make(rungs, seed=seed), random.Random(seed), result=sound)
    last = {decision.trial: decision.grant.level for decision in decisions if fork_of(decision.config) is None}
    scored = [(fork.parent, d.grant.level, d.rung) for d, fork in forks(decisions) if fork.recipe == INT8]
    assert sorted(scored) == [(trial, level, 0) for trial, level in sorted(last.items())]


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(RUNG_SCHEDULES), st.integers(0, 99), st.integers(1, 4))
def test_an_extended_search_repeats_its_decisions_and_goes_on(rungs: str, seed: int, window: int) -> None:
    options = {"seed": seed, "window": window, "algorithm": "tpe"}
    before = play(make(rungs, trial_batches=(14,), **options), random.Random(0), result=sound)
    after = play(make(rungs, trial_batches=(14, 9), **options), random.Random(1), before, sound)
    assert after[: len(before)] == before
    assert sum(decision.is_new and fork_of(decision.config) is None for decision in after) == 14 + 9
    scored: dict[int, list[tuple[int, int]]] = {}
    for decision, fork in forks(after):
        if fork.recipe == INT8:
            scored.setdefault(fork.parent, []).append((decision.rung, decision.grant.level))
    for rungs_of_fork in scored.values():
        assert [rung for rung, _ in rungs_of_fork] == list(range(len(rungs_of_fork)))
        assert rungs_of_fork == sorted(rungs_of_fork)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 99))
def test_a_fork_is_promoted_for_being_among_the_best_of_its_recipe(seed: int) -> None:
    search = make("asha", ForkPlan((), PLAN.trained, 0.8), seed=seed, budget=Budget(trials=30, max_epochs=4), window=1)
    losses: dict[Recipe, dict[int, float]] = {}
    for decision, fork in forks(play(search, random.Random(0))):
        known = losses.setdefault(fork.recipe, {})
        result = truth(decision)
        if decision.rung == 0 and result is not None:
            known[decision.trial] = result["loss"]
        elif decision.rung == 1:
            better = sum(loss < known[decision.trial] for loss in known.values())
            assert better < max(1, len(known) // search.budget.eta)


def test_a_recipe_that_fails_at_once_is_not_tried_again() -> None:
    def unsupported(decision: Decision) -> Metrics | None:
        fork = fork_of(decision.config)
        return (
            None
            if fork is not None and fork.recipe == NARROW
            else {"loss": 1 / decision.number, "size": 1.0}
            if decision.number
            else {"loss": 2.0, "size": 1.0}
        )

    made = play(make("none", ForkPlan((INT8,), PLAN.trained, 0.9), window=1), random.Random(0), result=unsupported)
    tried = [fork.recipe for _, fork in forks(made)]
    assert tried.count(NARROW) == 1
    assert tried.count(SPARSE) > 1


@pytest.mark.parametrize("rungs", RUNG_SCHEDULES)
def test_the_states_of_trials_and_forks_end(rungs: str) -> None:
    search = make(rungs)
    states: dict[int, TrialState] = {}
    for _ in count():
        decision = search.ask()
        states |= search.changed_states()
        if decision is None:
            break
        states |= search.changed_states()
        assert states[decision.trial] is TrialState.RUNNING
        search.tell(decision.number, truth(decision))
    states |= search.changed_states()
    assert search.is_finished
    assert set(states.values()) <= {TrialState.DONE, TrialState.STOPPED, TrialState.FAILED}
