"""`onefold compare`: run strategies of tuning at equal budget, and show their figures side by side."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from onefold.baselines.tuning_comparison import Comparison, StrategyEvent
from onefold.baselines.tuning_comparison import compare as compare_strategies
from onefold.baselines.tuning_strategies import STRATEGIES
from onefold.cli.console import out
from onefold.cli.options import (
    OBJECTIVE,
    SERVING,
    AcceleratorOption,
    HomeOption,
    JsonOption,
    NameOption,
    ParallelOption,
    ThreadsOption,
    WorkloadArgument,
)
from onefold.device.catalog import HOST
from onefold.serving.options import ServingOptions
from onefold.study import ParallelismOptions
from onefold.study.events import StudyEnded
from onefold.study.tunable import Tunable
from onefold.vocabulary import quantities
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.records import to_json
from onefold.vocabulary.requirement import requirement


def compare(
    workload: WorkloadArgument,
    strategies: Annotated[
        str, typer.Option(help="Strategies, separated by commas; figures are relative to the first")
    ] = ",".join(STRATEGIES),
    trials: Annotated[int, typer.Option(help="Configurations that each strategy tries")] = Budget.trials,
    minutes: Annotated[float | None, typer.Option(help="Stop each strategy after this many minutes")] = None,
    max_epochs: Annotated[int, typer.Option(help="Epochs of the full budget")] = Budget.max_epochs,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each strategy; medians are shown")] = 1,
    maximize: Annotated[
        list[str] | None, typer.Option(help="Metric to maximize; repeatable", rich_help_panel=OBJECTIVE)
    ] = None,
    minimize: Annotated[
        list[str] | None,
        typer.Option(help="Metric to minimize; repeatable (default: time_ratio)", rich_help_panel=OBJECTIVE),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help='Requirement such as "accuracy>=0.9"; repeatable', rich_help_panel=OBJECTIVE),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the models are served", rich_help_panel=SERVING)] = HOST,
    served_samples: Annotated[
        float | None,
        typer.Option(help="Samples whose serving ratios count (default: the test set)", rich_help_panel=SERVING),
    ] = None,
    parallel: ParallelOption = None,
    threads: ThreadsOption = None,
    accelerator: AcceleratorOption = "cpu",
    name: NameOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare strategies of tuning at equal budget: cost of tuning, and the models that they choose."""

    def show(each: StrategyEvent) -> None:
        if isinstance(each.event, StudyEnded) and not as_json:
            out.print(f"{each.strategy}, seed {each.seed}: {each.event.reason}", soft_wrap=True)

    goals = (maximize or [], minimize or ([] if maximize else ["time_ratio"]))
    comparison = compare_strategies(
        Tunable(workload),
        strategies=[each.strip() for each in strategies.split(",")],
        device=device,
        objective=Objective(*goals, dict(requirement(text) for text in require or [])),
        budget=Budget(trials=trials, minutes=minutes, max_epochs=max_epochs),
        serving=ServingOptions(served_samples=served_samples),
        parallelism=ParallelismOptions(parallel, threads, accelerator),
        seeds=range(seeds),
        name=name,
        home=home,
        on_event=show,
    )
    if as_json:
        out.out(json.dumps(comparison_json(comparison)))
    else:
        out.print(_table(comparison))
        sources = ", ".join(sorted({run.energy_source for run in comparison.runs}))
        out.print(f"energy of tuning: {sources}; models served in turn on {comparison.device}", soft_wrap=True)


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """Return a comparison as JSON values: the runs, and the medians with their ratios to the first strategy."""
    figures = {
        strategy: {
            metric: {"median": comparison.figure(strategy, metric), "ratio": comparison.ratio(strategy, metric)}
            for metric in comparison.metrics
        }
        for strategy in comparison.strategies
    }
    runs = [{**to_json(run), "folder": str(run.folder)} for run in comparison.runs]
    objective = comparison.objective.to_json()
    budget = to_json(comparison.budget)
    return {"objective": objective, "device": comparison.device, "budget": budget, "runs": runs, "figures": figures}


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("")
    for strategy in comparison.strategies:
        table.add_column(strategy, justify="right")
    for metric in comparison.metrics:
        cells = []
        for strategy in comparison.strategies:
            value = comparison.figure(strategy, metric)
            shown = quantities.number(value) if metric.endswith("_per_s") else quantities.metric(metric, value)
            is_first = strategy == comparison.strategies[0]
            cells.append(shown if is_first else f"{shown} ({comparison.ratio(strategy, metric):.2f}x)")
        table.add_row(metric, *cells)
    return table
