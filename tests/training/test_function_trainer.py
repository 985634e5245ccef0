"""Plain functions are trained like workloads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onefold
from onefold import Budget, Config, Float, Objective, ParallelismOptions, Space, at_most
from onefold.training import knob_session
from onefold.training.assignment import Assignment
from onefold.training.function_trainer import FunctionTrainer, Run
from onefold.training.neighbor_load import StatLoad
from onefold.vocabulary.knobs import KnobOptions, KnobRecord, Phase, knob_gain, knobs_in_use
from onefold.vocabulary.records import Epoch, Grant

SPACE = Space(x=Float(0, 10))


def curve(config: Config) -> Iterator[dict[str, float]]:
    for epoch in range(1, 100):
        yield {"loss": config.x / epoch}


def sized(config: Config) -> dict[str, float]:
    return {"value": config.x, "memory_bytes": 7.0}


def train(function: Any, folder: Path, objective: Objective, epochs: int = 3) -> list[Epoch]:
    grant = Grant(level=1, epochs=epochs, data=1.0)
    assignment = Assignment(0, 0, Config(x=2.0), grant, 1, 1, max_epochs=9, objective=objective)
    return list(FunctionTrainer(function, folder).train([assignment], tick=lambda: None))


def test_costs_so_far_are_metrics(tmp_path: Path) -> None:
    epochs = train(curve, tmp_path, Objective(minimize="loss"))
    times = [epoch.metrics["train_time_s"] for epoch in epochs]
    assert times == pytest.approx([sum(e.measurement.time_s for e in epochs[: n + 1]) for n in range(3)])
    for epoch in epochs:
        costs = {"energy_j": epoch.measurement.energy.joules, "memory_bytes": epoch.measurement.memory_bytes}
        assert {name for name in costs if name in epoch.metrics} == {n for n, v in costs.items() if v is not None}


def test_a_reported_metric_replaces_a_measured_cost_of_its_name(tmp_path: Path) -> None:
    epoch = train(sized, tmp_path, Objective(minimize="value"))[0]
    assert epoch.metrics["memory_bytes"] == 7.0


def test_an_objective_may_be_an_expression_over_reported_metrics(tmp_path: Path) -> None:
    epoch = train(curve, tmp_path, Objective(minimize="loss * 2"))[0]
    assert epoch.metrics["loss * 2"] == 4.0


def test_a_run_has_the_budget_and_a_folder_that_is_kept(tmp_path: Path) -> None:
    runs: list[Run] = []

    def function(config: Config, run: Run) -> float:
        runs.append(run)
        (run.folder / "state").write_text("kept")
        return config.x

    train(function, tmp_path, Objective(minimize="value"), epochs=5)
    train(function, tmp_path, Objective(minimize="value"), epochs=7)
    assert [run.epochs for run in runs] == [5, 7]
    assert runs[0].folder == runs[1].folder
    assert runs[0].folder.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    "objective",
    [
        Objective(minimize=("loss", "energy_j")),
        Objective(minimize="loss", require={"memory_bytes": at_most(1e15)}),
        Objective(minimize="loss + train_time_s"),
    ],
    ids=["goal", "bound", "expression"],
)
def test_objectives_of_functions_may_use_costs(objective: Objective, tmp_path: Path) -> None:
    metrics = train(curve, tmp_path, objective)[0].metrics
    if not set(objective.inputs) <= set(metrics):
        pytest.skip("this machine does not measure a cost of the objective")
    budget = Budget(trials=4, max_epochs=2)
    inline = ParallelismOptions(engine="inline")
    result = onefold.tune(curve, SPACE, objective=objective, budget=budget, home=tmp_path, parallelism=inline)
    assert set(objective.metrics) <= set(result.metrics)
    assert result.is_feasible


def records_of(function: Any, folder: Path, epochs: int, **knobs: Any) -> list[KnobRecord]:
    grant = Grant(level=1, epochs=epochs, data=1.0)
    objective = Objective(minimize="value")
    options = KnobOptions("probe", **knobs)
    work = Assignment(0, 0, Config(x=2.0), grant, 1, 1, max_epochs=epochs, objective=objective, knobs=options)
    events = list(FunctionTrainer(function, folder).train([work], tick=lambda: None))
    assert sum(isinstance(event, Epoch) for event in events) == epochs
    return [event for event in events if isinstance(event, KnobRecord)]


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advances a simulated clock, since a busy machine hides which threads are faster."""
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(knob_session.time, "perf_counter", lambda: now)
    monkeypatch.setattr(StatLoad, "others_s", lambda _: 0.0)
    return advance


@pytest.fixture
def two_threads() -> Iterator[None]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core has no threads to choose")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_knobs_of_the_process_are_tuned_while_a_function_yields(
    tmp_path: Path, advance: Callable[[float], None]
) -> None:
    def function(config: Config) -> Iterator[float]:
        for _ in range(60):
            advance(0.001 if torch.get_num_threads() == 1 else 0.03)
            yield float(torch.get_num_threads())

    records = records_of(function, tmp_path, 60)
    assert knobs_in_use(records) is not None
    assert knobs_in_use(records).threads == 1  # type: ignore[union-attr]
    assert knob_gain(records) is not None
    assert set(records[0].defaults) <= {"threads", "cores", "allocator", "frequency_khz", "memory_gib"}
    (memory,) = [record.learned for record in records if record.learned is not None]
    assert "log_step_cpu_us" in memory.profile.features


@pytest.mark.usefixtures("two_threads")
def test_a_later_rung_keeps_the_knobs_of_a_function(tmp_path: Path, advance: Callable[[float], None]) -> None:
    def function(config: Config) -> Iterator[float]:
        for _ in range(60):
            advance(0.001 if torch.get_num_threads() == 1 else 0.03)
            yield 1.0

    first = records_of(function, tmp_path, 60)
    settled = knobs_in_use(first)
    assert settled is not None
    later = records_of(function, tmp_path, 60)
    windows = [window for record in later for window in record.windows]
    assert windows[0].phase is Phase.SETTLED
    assert windows[0].knobs == settled


def test_functions_that_yield_little_are_not_tuned(tmp_path: Path) -> None:
    def function(config: Config) -> Iterator[float]:
        yield from (1.0, 2.0, 3.0)

    assert records_of(function, tmp_path, 3) == []
