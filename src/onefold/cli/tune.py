"""`onefold tune`: search configurations of a workload, train the best, and measure how to serve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli.console import out
from onefold.cli.display import display_for
from onefold.cli.options import (
    BUDGET,
    COMPRESSION,
    OBJECTIVE,
    OUTPUT,
    PARALLELISM,
    SEARCH,
    SERVING,
    AcceleratorOption,
    AllowSlowerOption,
    CompressOption,
    DistillOption,
    GoalOption,
    GuardOption,
    HomeOption,
    JsonOption,
    KnobsOption,
    LargestBatchOption,
    MaxMetricLossOption,
    MemoryOption,
    NameOption,
    OptimizeKnobsOption,
    OptimizeServingOption,
    ParallelOption,
    PreferOption,
    ReducedPrecisionOption,
    RuntimeOption,
    SaveOption,
    ScenarioOption,
    TakeOption,
    ThreadsOption,
    WorkloadArgument,
    preference_of,
    requirements_of,
    space_up_to,
)
from onefold.cli.study_run import check_save_folder, run
from onefold.compression.selection import SelectionOptions
from onefold.serving.options import ServingOptions
from onefold.store.jobs import DEFAULT_TENANT
from onefold.study import Home, ParallelismOptions, SearchOptions, Study
from onefold.study.queue import Queue
from onefold.study.tunable import Tunable
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.forks import ForkOptions
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.preference import Preference
from onefold.vocabulary.quantities import parse_bytes, parse_share


def tune(
    workload: WorkloadArgument,
    trials: Annotated[int, typer.Option(help="Configurations to try", rich_help_panel=BUDGET)] = Budget.trials,
    minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes", rich_help_panel=BUDGET)] = None,
    joules: Annotated[float | None, typer.Option(help="Stop after this much energy", rich_help_panel=BUDGET)] = None,
    target: Annotated[
        float | None, typer.Option(help="Stop when the first goal reaches this value", rich_help_panel=BUDGET)
    ] = None,
    max_epochs: Annotated[
        int, typer.Option(help="Epochs of the full budget", rich_help_panel=BUDGET)
    ] = Budget.max_epochs,
    min_epochs: Annotated[
        int, typer.Option(help="Epochs of the lowest rung", rich_help_panel=BUDGET)
    ] = Budget.min_epochs,
    min_data: Annotated[
        float, typer.Option(help="Share of the data at the lowest rung", show_default="1/3", rich_help_panel=BUDGET)
    ] = Budget.min_data,
    budget: Annotated[
        str, typer.Option(help="What grows from rung to rung: multi, epochs, data, time", rich_help_panel=BUDGET)
    ] = Budget.kind,
    min_time: Annotated[
        float, typer.Option(help="Seconds of the lowest rung, with --budget time", rich_help_panel=BUDGET)
    ] = Budget.min_time_s,
    max_time: Annotated[
        float, typer.Option(help="Seconds of the full budget, with --budget time", rich_help_panel=BUDGET)
    ] = Budget.max_time_s,
    maximize: Annotated[
        list[str] | None, typer.Option(help="Metric to maximize; repeatable", rich_help_panel=OBJECTIVE)
    ] = None,
    minimize: Annotated[
        list[str] | None, typer.Option(help="Metric to minimize; repeatable", rich_help_panel=OBJECTIVE)
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help='Requirement such as "accuracy>=0.9"; repeatable', rich_help_panel=OBJECTIVE),
    ] = None,
    prefer: PreferOption = None,
    guard: GuardOption = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="grid, random, tpe, gp, cmaes, nsga2, bohb (tpe with hyperband); per group: model=grid, system=few, "
            "serving=grid; repeatable (default: tpe)",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    rungs: Annotated[
        str | None,
        typer.Option(
            help="Early stopping: none, halving, hyperband, asha, top-k (default: halving)", rich_help_panel=SEARCH
        ),
    ] = None,
    top_k: Annotated[
        int, typer.Option(help="Trials promoted per rung, with --rungs top-k", rich_help_panel=SEARCH)
    ] = 3,
    eta: Annotated[int, typer.Option(help="Promote the best 1/eta of a rung", rich_help_panel=SEARCH)] = Budget.eta,
    growth: Annotated[
        str, typer.Option(help="How budgets grow from rung to rung: geometric, linear", rich_help_panel=SEARCH)
    ] = Budget.growth,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Train from scratch at every rung, not from the checkpoint", rich_help_panel=SEARCH
        ),
    ] = False,
    warm_start: Annotated[
        str | None, typer.Option(help="Study over the same space to learn from", rich_help_panel=SEARCH)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all decisions", rich_help_panel=SEARCH)] = 0,
    device: Annotated[
        list[str] | None,
        typer.Option(help="Where the model will be served (onefold devices); repeatable", rich_help_panel=SERVING),
    ] = None,
    optimize_serving_for: OptimizeServingOption = "throughput",
    scenario: ScenarioOption = None,
    scenario_goal: GoalOption = "mean",
    largest_batch: LargestBatchOption = None,
    runtimes: RuntimeOption = None,
    serving_search: Annotated[
        str, typer.Option(help="Search over serving points: few, grid", rich_help_panel=SERVING)
    ] = "few",
    served_samples: Annotated[
        float | None,
        typer.Option(
            help="Samples whose serving time_ratio and energy_ratio count, such as 1e6 (default: the test set)",
            rich_help_panel=SERVING,
        ),
    ] = None,
    measure: Annotated[
        str,
        typer.Option(
            help="What to measure on the devices: every trial (trials) or the winner", rich_help_panel=SERVING
        ),
    ] = "trials",
    measure_cores: Annotated[
        int | None,
        typer.Option(
            help="Cores on which trials are measured while others train; 0 pauses the trials (default: 0, and a "
            "quarter of the cores beside an accelerator)",
            rich_help_panel=SERVING,
        ),
    ] = None,
    knobs: KnobsOption = "on",
    optimize_knobs_for: OptimizeKnobsOption = "time",
    reduced_precision: ReducedPrecisionOption = False,
    compress: CompressOption = "off",
    fork_share: Annotated[
        str,
        typer.Option(help="Share of the training that forks may take, in the loop", rich_help_panel=COMPRESSION),
    ] = "50%",
    fork_epochs: Annotated[
        int,
        typer.Option(help="Epochs of a fork after each kind of pruning, in the loop", rich_help_panel=COMPRESSION),
    ] = ForkOptions().epochs,
    distill: DistillOption = 0.0,
    take: TakeOption = None,
    allow_slower: AllowSlowerOption = "2%",
    max_metric_loss: MaxMetricLossOption = 0.01,
    parallel: ParallelOption = None,
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    accelerator: AcceleratorOption = "cpu",
    hang_timeout: Annotated[
        float,
        typer.Option(help="Seconds without a report after which a trial has hung", rich_help_panel=PARALLELISM),
    ] = ParallelismOptions().hang_timeout_s,
    save: SaveOption = None,
    name: NameOption = None,
    queued: Annotated[
        bool, typer.Option("--queued", help="Queue the study (onefold submit)", rich_help_panel=OUTPUT)
    ] = False,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant that the study is queued for", rich_help_panel=OUTPUT)
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best configuration of a workload and train it."""
    if queued and save is not None:
        raise InputError("a queued study keeps its model in its own folder; leave --save out")
    if tenant is not None and not queued:
        raise InputError("only a queued study has a tenant; submit it with: onefold submit … --tenant NAME")
    check_save_folder(save)
    selection = SelectionOptions(max_metric_loss=max_metric_loss, allow_slower=parse_share(allow_slower), take=take)
    forks = ForkOptions(epochs=fork_epochs, share=parse_share(fork_share), distill=distill)
    if compress != "in-loop" and forks != ForkOptions():
        raise InputError("--fork-share, --fork-epochs and --distill are about forks; add --compress in-loop")
    if compress != "after" and selection != SelectionOptions():
        raise InputError(
            "--take, --allow-slower and --max-metric-loss select a variant after a study; add --compress after"
        )
    tunable = Tunable(workload)
    objective = objective_of(
        tunable.objective, maximize or [], minimize or [], require or [], preference_of(prefer, guard or [])
    )
    display = display_for(out, objective, as_json)
    study = Study(
        tunable,
        objective=objective,
        budget=Budget(
            trials=trials, minutes=minutes, joules=joules, target=target, kind=budget,  # type: ignore[arg-type]
            min_epochs=min_epochs, max_epochs=max_epochs, min_data=min_data, min_time_s=min_time, max_time_s=max_time,
            eta=eta, growth=growth, fresh=fresh,  # type: ignore[arg-type]
        ),
        search=SearchOptions(algorithm_of(search or []), rungs=rungs, top_k=top_k, warm_start=warm_start),
        device=device or (),
        serving=ServingOptions(
            optimize_for=optimize_serving_for,
            search=serving_search,
            space=space_up_to(largest_batch),
            scenarios=tuple(scenario or ()),
            scenario_goal=scenario_goal,
            measure=measure,  # type: ignore[arg-type]
            served_samples=served_samples,
            measure_cores=measure_cores,
            runtimes=tuple(runtimes or ()),
        ),
        knobs=KnobOptions(knobs, optimize_knobs_for, reduced=reduced_precision),  # type: ignore[arg-type]
        compress={"after": selection, "in-loop": forks}.get(compress, compress),  # type: ignore[arg-type]
        parallelism=ParallelismOptions(
            parallel=parallel,
            threads=threads,
            accelerator=accelerator,
            memory_bytes=parse_bytes(memory) if memory else None,
            hang_timeout_s=hang_timeout,
        ),
        seed=seed,
        name=name,
        home=home,
        on_event=display,
    )  # fmt: skip
    if queued:
        _submit(study, tenant or DEFAULT_TENANT, home, as_json)
    else:
        run(study, display, as_json, save)


def objective_of(
    default: Objective, maximize: list[str], minimize: list[str], require: list[str], prefer: Preference | None = None
) -> Objective:
    """Return the objective that the options describe; without goals, those of the workload. Requirements are added."""
    bounds = {**default.require, **requirements_of(require)}
    if not maximize and not minimize:
        maximize = [goal.metric for goal in default.goals if goal.maximize]
        minimize = [goal.metric for goal in default.goals if not goal.maximize]
        prefer = prefer or default.prefer
    return Objective(maximize, minimize, bounds, prefer)


def algorithm_of(values: list[str]) -> str | dict[str, str]:
    """Return the search algorithm, or one for each parameter group, from the values of `--search`."""
    if not values:
        return "tpe"
    if len(values) == 1 and "=" not in values[0]:
        return values[0]
    groups = dict(text.partition("=")[::2] for text in values)
    if not all(groups.values()):
        raise InputError(
            f"expected one algorithm, or one for each group such as --search model=grid, got {' '.join(values)}"
        )
    return groups


def _submit(study: Study, tenant: str, home: Path | None, as_json: bool) -> None:
    queue = Queue(Home(home))
    before = queue.submit(study, tenant=tenant)
    queue.serve_in_background()
    if as_json:
        out.out(json.dumps({"study": study.name, "before": before}))
    else:
        out.print(f"submitted {study.name}; {before} before it. See: onefold queue, onefold show {study.name}")
