from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from searcher_contract import CONDITIONAL

from onefold.search.algorithms import ALGORITHMS, create_searcher
from onefold.search.searcher import Observation, SpaceExhausted
from onefold.vocabulary.errors import InputError, ObjectiveError, SpaceError
from onefold.vocabulary.space import Choice, Float, Int, Space

SPACE = Space(
    model=dict(width=Choice(8, 16, 32), depth=Int(1, 2)),
    training=dict(lr=Float(1e-4, 1e-1, log=True), momentum=Float(0.0, 0.9, when={"depth": 2})),
    machine=dict(threads=Int(1, 4)),
)


def run(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_gives_a_searcher(name):
    SPACE.check(create_searcher(name, SPACE, seed=1).ask(0))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("tpee", "unknown algorithm 'tpee'; did you mean 'tpe'"),
        ("anneal", "known: cmaes, gp, grid, nsga2, random, tpe"),
        ({"model": "girds"}, "did you mean 'grid'"),
        ({"modle": "grid"}, "unknown group 'modle' of the space; did you mean 'model'"),
        ({"model": "grid", "model+training": "tpe"}, "group 'model' has two algorithms"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(algorithm, message):
    with pytest.raises(SpaceError, match=message.replace("+", r"\+")):
        create_searcher(algorithm, SPACE)


def test_cmaes_takes_one_goal():
    with pytest.raises(ObjectiveError, match="one goal, but got 2; use nsga2, tpe or gp"):
        create_searcher("cmaes", SPACE, goals=2)
    assert issubclass(ObjectiveError, InputError)


def test_each_group_can_have_its_own_algorithm():
    grouped = create_searcher({"model": "grid", "training": "random"}, SPACE)
    configs = [grouped.ask(number) for number in range(12)]
    for config in configs:
        SPACE.check(config)
    cells = [(config.width, config.depth) for config in configs]
    assert len(set(cells[:6])) == 6, "the grid proposes each cell once"
    assert cells[:6] == cells[6:], "and starts again, because the other groups go on"
    assert len({config.lr for config in configs}) == 12


def test_conditions_hold_across_groups():
    grouped = create_searcher({"model": "grid", "training": "tpe"}, SPACE)
    for number in range(40):
        config = grouped.ask(number)
        assert ("momentum" in config) == (config.depth == 2)
        grouped.tell(Observation(number, 1, config, (config.lr,)))


def test_groups_joined_by_a_plus_are_searched_together():
    grouped = create_searcher({"model+machine": "grid", "*": "random"}, SPACE)
    cells = {(c.width, c.depth, c.threads) for c in (grouped.ask(number) for number in range(24))}
    assert len(cells) == 24


def test_one_algorithm_for_all_groups_is_not_grouped():
    whole = create_searcher({"*": "grid"}, Space(a=Choice(1, 2), b=Choice(3, 4)))
    for number in range(4):
        whole.ask(number)
    with pytest.raises(SpaceExhausted):
        whole.ask(4)


def test_random_and_grid_search_do_not_import_optuna():
    run(
        "import sys; from onefold.search.algorithms import create_searcher; from onefold.vocabulary.space import *\n"
        "space = Space(model=dict(a=Int(1, 4)), training=dict(b=Float(0, 1)))\n"
        "for name in ('random', 'grid', {'model': 'grid', 'training': 'random'}): create_searcher(name, space).ask(0)\n"
        "assert 'optuna' not in sys.modules and 'torch' not in sys.modules"
    )


def last_proposals() -> str:
    proposals = []
    for name in ("random", "grid", "tpe", "cmaes", "nsga2", {"model": "tpe"}):
        searcher = create_searcher(name, CONDITIONAL, 5)
        for number in range(12):
            config = searcher.ask(number)
            searcher.tell(Observation(number, 1, config, (config.lr,), 0.1 * (number % 4)))
        proposals.append(f"{name} {config}")
    return "\n".join(proposals)


def test_proposals_are_the_same_in_every_process():
    # Sets and hashes of strings differ between processes, and a study may be resumed in another one.
    code = "import sys; from test_algorithms import last_proposals; sys.stdout.write(last_proposals())"
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    assert run(code, PYTHONHASHSEED="1", PYTHONPATH=path) == last_proposals()
