"""Solvers converge, and their knobs are tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from onefold import Config, Objective, Space
from onefold.training.assignment import Assignment
from onefold.training.function_trainer import FunctionTrainer
from onefold.vocabulary.knobs import KnobOptions, KnobRecord, Phase
from onefold.vocabulary.records import Grant
from onefold.workloads.solvers import (
    BREADTH_FIRST_SEARCH,
    JACOBI,
    SPARSE_KMEANS,
    breadth_first_search,
    jacobi,
    sparse_kmeans,
)

SMALL = {
    jacobi: (JACOBI, {"side": 256}, "residual"),
    sparse_kmeans: (SPARSE_KMEANS, {"samples": 5_000}, "distance"),
    breadth_first_search: (BREADTH_FIRST_SEARCH, {"nodes": 50_000}, "depth"),
}


@pytest.mark.parametrize("solver", [jacobi, sparse_kmeans])
def test_iterations_come_nearer_to_the_solution(solver: Callable[[Config], Iterator[dict[str, float]]]) -> None:
    space, given, metric = SMALL[solver]
    values = [value[metric] for value in islice(solver(space.complete(given)), 6)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]


def test_the_mean_depth_of_a_random_graph_is_logarithmic() -> None:
    depths = [value["depth"] for value in islice(breadth_first_search(Config(nodes=50_000, degree=8)), 2)]
    assert all(4.0 < depth < 8.0 for depth in depths)


@pytest.mark.parametrize("solver", SMALL)
def test_knobs_act_on_solvers(solver: Any, tmp_path: Path) -> None:
    space, given, metric = SMALL[solver]
    work = Assignment(
        0, 0, space.complete(given), Grant(1, 16, 1.0), 1, 2, 16, Objective(minimize=metric), knobs=KnobOptions("probe")
    )
    events = list(FunctionTrainer(solver, tmp_path).train([replace(work)], tick=lambda: None))
    windows = [window for event in events if isinstance(event, KnobRecord) for window in event.windows]
    assert windows[0].phase is Phase.FOUND
    assert isinstance(space, Space)
    assert any(window.phase is Phase.PROBED for window in windows)
