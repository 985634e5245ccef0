"""Plain functions as trials: what they report, and what is reported beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import Budget, Config, Float, Objective, Space, at_most
from onefold.training.assignment import Assignment
from onefold.training.functions import FunctionTrainer
from onefold.vocabulary.records import Epoch, Grant

SPACE = Space(x=Float(0, 10))


def curve(config: Config) -> Iterator[dict[str, float]]:
    for epoch in range(1, 100):
        yield {"loss": config.x / epoch}


def weighed(config: Config) -> dict[str, float]:
    return {"value": config.x, "memory_bytes": 7.0}


def serve(function: Any, folder: Path, objective: Objective, epochs: int = 3) -> list[Epoch]:
    grant = Grant(level=1, epochs=epochs, data=1.0)
    work = Assignment(0, 0, Config(x=2.0), grant, 1, 1, most_epochs=9, folder=str(folder), objective=objective)
    return list(FunctionTrainer(function).train([work], tick=lambda: None))


def test_a_function_tells_what_its_visit_cost_so_far(tmp_path: Path) -> None:
    epochs = serve(curve, tmp_path, Objective(minimize="loss"))
    spent = [epoch.metrics["train_time_s"] for epoch in epochs]
    assert spent == pytest.approx([sum(e.measurement.time_s for e in epochs[: n + 1]) for n in range(3)])
    for epoch in epochs:
        known = {"energy_j": epoch.measurement.energy.joules, "memory_bytes": epoch.measurement.memory_bytes}
        assert {name for name in known if name in epoch.metrics} == {n for n, v in known.items() if v is not None}


def test_a_metric_of_the_functions_own_takes_the_place_of_a_cost(tmp_path: Path) -> None:
    epoch = serve(weighed, tmp_path, Objective(minimize="value"))[0]
    assert epoch.metrics["memory_bytes"] == 7.0


def test_an_objective_may_be_arithmetic_over_what_a_function_reports(tmp_path: Path) -> None:
    epoch = serve(curve, tmp_path, Objective(minimize="loss * 2"))[0]
    assert epoch.metrics["loss * 2"] == 4.0


@pytest.mark.parametrize(
    "objective",
    [
        Objective(minimize=("loss", "energy_j")),
        Objective(minimize="loss", require={"memory_bytes": at_most(1e15)}),
        Objective(minimize="loss + train_time_s"),
    ],
    ids=["goal", "bound", "expression"],
)
def test_costs_are_goals_and_bounds_of_functions_too(objective: Objective, tmp_path: Path) -> None:
    seen = serve(curve, tmp_path, objective)[0].metrics
    if not set(objective.inputs) <= set(seen):
        pytest.skip("this machine does not tell what this asks for")
    budget = Budget(trials=4, max_epochs=2)
    result = onefold.tune(curve, SPACE, objective=objective, budget=budget, home=tmp_path, engine="inline")
    assert set(objective.metrics) <= set(result.metrics)
    assert result.keeps_requirements
