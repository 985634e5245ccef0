"""The algorithms learn from results: of the right level, around failures and requirements."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.search.algorithms import create_searcher
from onefold.search.samples import quasirandom_config
from onefold.search.searcher import Observation
from onefold.vocabulary.errors import SpaceError
from onefold.vocabulary.records import Config
from onefold.vocabulary.space import Choice, Float, Int, Space

LINE = Space(x=Float(0.0, 1.0))
PLANE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))


def trained(algorithm, level=1, results=12, loss=lambda x: x, first=-1, into=None):
    searcher = into or create_searcher(algorithm, LINE, 3)
    for i in range(results):
        x = (i + 0.5) / results
        searcher.tell(Observation(first - i, level, Config(x=x), (loss(x),)))
    return searcher


def proposals(searcher, trials, first=0):
    return [searcher.ask(number).x for number in range(first, first + trials)]


@pytest.mark.parametrize("algorithm", ["tpe", "gp"])
def test_the_model_is_fitted_to_the_highest_level_with_enough_results(algorithm):
    trials = 8 if algorithm == "tpe" else 1
    if algorithm == "tpe":
        assert statistics.median(proposals(trained(algorithm, level=1), trials)) < 0.4
    few = trained(algorithm, level=9, results=2, loss=lambda x: -x, first=-100, into=trained(algorithm, level=1))
    assert statistics.median(proposals(few, trials)) < 0.4
    high = trained(algorithm, level=9, results=6, loss=lambda x: -x, first=-100, into=trained(algorithm, level=1))
    assert statistics.median(proposals(high, trials)) > 0.6


def test_without_enough_results_samples_are_quasirandom():
    unlearned = trained("tpe", results=2)
    first = sorted(proposals(unlearned, 16))
    assert max(after - before for before, after in itertools.pairwise([0.0, *first, 1.0])) < 0.15
    assert proposals(trained("tpe", results=3), 16) != proposals(trained("tpe", results=2), 16)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_every_prefix_of_the_sequence_covers_each_range(seed, parameters):
    space = Space(**{f"x{i}": Float(0.0, 1.0) for i in range(parameters)})
    points = [quasirandom_config(space, seed, number) for number in range(64)]
    for name in space:
        values = sorted(point[name] for point in points)
        assert max(after - before for before, after in itertools.pairwise(values)) < 0.25


def test_the_sequence_respects_conditions_and_depends_on_the_seed():
    space = Space(kind=Choice("a", "b"), size=Int(1, 4, when={"kind": "b"}))
    configs = [quasirandom_config(space, 0, number) for number in range(20)]
    for config in configs:
        space.check(config)
    assert {config.kind for config in configs} == {"a", "b"}
    assert configs != [quasirandom_config(space, 1, number) for number in range(20)]


@pytest.mark.parametrize("algorithm", ["tpe", "gp"])
def test_running_trials_change_the_next_proposal(algorithm):
    free, busy = trained(algorithm), trained(algorithm)
    guess = free.ask(0)
    for number in range(1, 4):
        busy.recall(number, guess)
    assert abs(busy.ask(0).x - guess.x) > 1e-3


@pytest.mark.parametrize("algorithm", ["tpe", "gp"])
def test_failures_are_avoided(algorithm):
    blind, warned = (trained(algorithm, results=6, loss=lambda x: -x) for _ in range(2))
    for i in range(20):
        warned.tell(Observation(1000 + i, 1, Config(x=0.7 + 0.015 * i), None))
    assert warned.ask(0).x < 0.65 < blind.ask(0).x


@pytest.mark.parametrize(("algorithm", "trials"), [("tpe", 60), ("cmaes", 80), ("nsga2", 160)])
def test_configurations_that_meet_the_requirements_are_preferred(algorithm, trials):
    searcher = create_searcher(algorithm, PLANE, 2)
    kept = []
    for number in range(trials):
        config = searcher.ask(number)
        searcher.tell(Observation(number, 1, config, (-config.x,), max(0.0, config.x - 0.5)))
        kept.append(config.x)
    last = kept[-trials // 3 :]
    assert statistics.median(last) < 0.65
    assert max(x for x in kept if x <= 0.5) > 0.4


@pytest.mark.parametrize("algorithm", ["cmaes", "nsga2"])
def test_evolution_learns_only_the_first_result_of_a_trial(algorithm):
    once, twice = (create_searcher(algorithm, PLANE, 1) for _ in range(2))
    for number in range(40):
        config = once.ask(number)
        assert config == twice.ask(number)
        once.tell(Observation(number, 1, config, (config.x,)))
        twice.tell(Observation(number, 1, config, (config.x,)))
        twice.tell(Observation(number, 3, config, (-config.x,)))


@pytest.mark.parametrize("algorithm", ["cmaes", "nsga2"])
def test_a_warm_start_is_used(algorithm):
    fresh, warm = (create_searcher(algorithm, PLANE, 1) for _ in range(2))
    for i in range(40):
        x = i / 39
        warm.tell(Observation(-1 - i, 1, Config(x=x, y=1 - x), (x,)))
    assert statistics.mean(proposals(warm, 12)) < statistics.mean(proposals(fresh, 12)) - 0.1


@pytest.mark.parametrize("algorithm", ["tpe", "nsga2"])
def test_several_goals_are_optimized_together(algorithm):
    searcher = create_searcher(algorithm, PLANE, 1, 2)
    for number in range(60):
        config = searcher.ask(number)
        searcher.tell(Observation(number, 1, config, (config.x + config.y, 1 - config.x + config.y)))
    last = [searcher.ask(number) for number in range(100, 120)]
    assert statistics.median(config.y for config in last) < 0.3
    assert max(config.x for config in last) - min(config.x for config in last) > 0.3


@pytest.mark.parametrize("algorithm", ["tpe", "cmaes"])
def test_numeric_parameters_of_every_kind_are_learned(algorithm):
    space = Space(width=Choice(8, 16, 32, 64, 128), depth=Int(1, 9), lr=Float(1e-5, 1.0, log=True))
    searcher = create_searcher(algorithm, space, 4)
    for number in range(60):
        config = searcher.ask(number)
        loss = abs(space.parameters["width"].options.index(config.width) - 3) + abs(config.depth - 7) / 2
        searcher.tell(Observation(number, 1, config, (loss,)))
    last = [searcher.ask(number) for number in range(100, 120)]
    assert statistics.median(config.width for config in last) == 64
    assert 6 <= statistics.median(config.depth for config in last) <= 8


def test_options_that_compare_equal_are_distinguished():
    space = Space(a=Choice(1, 1.0, True, None, "1"), b=Float(0.0, 1.0))
    searcher, result = create_searcher("tpe", space, 0), []
    for number in range(60):
        config = searcher.ask(number)
        space.check(config)
        searcher.tell(Observation(number, 1, config, (config.b if config.a is True else 1 + config.b,)))
        result.append(config.a is True)
    assert sum(result[20:]) > 14  # of 40; 8 if they were not distinguished


@pytest.mark.parametrize("algorithm", ["tpe", "gp", "cmaes", "nsga2"])
def test_results_of_another_space_are_an_error(algorithm):
    searcher = create_searcher(algorithm, LINE, 0)
    with pytest.raises(SpaceError, match="not of this searcher's space: x=7"):
        searcher.tell(Observation(-1, 1, Config(x=7.0), (1.0,)))


@pytest.mark.parametrize("algorithm", ["tpe", "gp"])
def test_a_corrected_violation_is_learned(algorithm):
    trials = 8 if algorithm == "tpe" else 1
    searcher = create_searcher(algorithm, LINE, 3)
    seen = [Observation(-1 - i, 1, Config(x=(i + 0.5) / 12), ((i + 0.5) / 12,)) for i in range(12)]
    for observation in seen:
        searcher.tell(observation)
    for observation in seen:  # relative to a new best, the lower half violates the requirements
        searcher.tell(replace(observation, violation=max(0.0, 0.5 - observation.config.x)))
    assert statistics.median(proposals(searcher, trials)) > 0.4
