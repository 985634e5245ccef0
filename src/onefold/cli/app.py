"""`onefold tune | resume | list | show | report | workloads | devices | compile | compress | impact | retrain | shift |
measure | serve-check`.

Exit codes: 0 all is well, 2 bad input, 3 trouble with the store, 4 the study has no model, 5 no workers,
130 interrupted (resume it), 1 anything else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from onefold import __version__
from onefold.cli import compile as compile_command
from onefold.cli import compress, devices, impact, knobs, queue, retrain, serving, shift, tables
from onefold.cli.console import err, out, print_report
from onefold.cli.display import Display, display_for, results
from onefold.cli.options import (
    CompressOption,
    GoalOption,
    HomeOption,
    JsonOption,
    KnobsForOption,
    KnobsOption,
    LargestBatchOption,
    ReducedOption,
    space_up_to,
)
from onefold.report import Report, phrases
from onefold.serving.options import ServingOptions
from onefold.study import Home, ParallelismOptions, Result, SearchOptions, Study
from onefold.study.api import single_trial
from onefold.study.coordinator import DONE
from onefold.study.queue import Queue
from onefold.study.summary import summary_of
from onefold.study.tunable import Tunable
from onefold.vocabulary.errors import InputError, OnefoldError
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.quantities import duration, parse_bytes, settings
from onefold.vocabulary.ranking import ranked
from onefold.vocabulary.records import to_json
from onefold.vocabulary.requirement import requirement
from onefold.vocabulary.workload_reference import ready_workloads

app = typer.Typer(
    name="onefold",
    help="Tune a neural network for the device it will live on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(devices.app, name="devices")
app.add_typer(knobs.app, name="knobs")
app.add_typer(queue.app, name="queue")
app.command("compile")(compile_command.compile_models)
app.command("compress")(compress.command)
app.command("impact")(impact.command)
app.command("retrain")(retrain.retrain)
app.command("shift")(shift.shift)
app.command("measure")(serving.measure)
app.command("serve-check")(serving.serve_check)


def main() -> None:
    """Runs a command; a mistake ends in one sentence and an exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
    try:
        app()
    except OnefoldError as error:
        err.print(Text.assemble(("onefold: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(error.exit_code)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
def tune(
    workload: Annotated[str, typer.Argument(help="FILE.py[:Class], package.module:Class, or a ready workload")],
    trials: Annotated[int, typer.Option(help="Configurations to try")] = Budget.trials,
    minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes")] = None,
    joules: Annotated[float | None, typer.Option(help="Stop after so much energy")] = None,
    target: Annotated[float | None, typer.Option(help="Stop when the first goal reaches this value")] = None,
    maximize: Annotated[list[str] | None, typer.Option(help="A metric to maximize; may be repeated")] = None,
    minimize: Annotated[list[str] | None, typer.Option(help="A metric to minimize; may be repeated")] = None,
    require: Annotated[list[str] | None, typer.Option(help='A bound such as "accuracy>=0.9"; may be repeated')] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(help="grid, random, tpe, gp, cmaes, nsga2; per group: model=grid (repeated) (default: tpe)"),
    ] = None,
    rungs: Annotated[str, typer.Option(help="none, halving, hyperband, asha, top-k")] = "halving",
    top_k: Annotated[int, typer.Option(help="How many go on with --rungs top-k")] = 3,
    budget: Annotated[str, typer.Option(help="What grows from rung to rung: multi, epochs, data, time")] = Budget.kind,
    min_epochs: Annotated[int, typer.Option(help="Epochs of the lowest rung")] = Budget.min_epochs,
    max_epochs: Annotated[int, typer.Option(help="Epochs of the full budget")] = Budget.max_epochs,
    min_data: Annotated[float, typer.Option(help="Share of the data at the lowest rung")] = Budget.min_data,
    min_time: Annotated[float, typer.Option(help="Seconds of the lowest rung, --budget time")] = Budget.min_time_s,
    max_time: Annotated[float, typer.Option(help="Seconds of the full budget, --budget time")] = Budget.max_time_s,
    eta: Annotated[int, typer.Option(help="The best 1/eta of a rung go on")] = Budget.eta,
    growth: Annotated[str, typer.Option(help="How levels grow: geometric or linear")] = Budget.growth,
    fresh: Annotated[bool, typer.Option("--fresh", help="Retrain at every rung, not from the checkpoint")] = False,
    seed: Annotated[int, typer.Option(help="The same seed makes the same decisions")] = 0,
    name: Annotated[str | None, typer.Option(help="What to call the study")] = None,
    accelerator: Annotated[str, typer.Option(help="cpu, cuda, cuda:1")] = "cpu",
    parallel: Annotated[int | None, typer.Option(help="Trials side by side (default: measured)")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each, with --parallel")] = None,
    memory: Annotated[str | None, typer.Option(help="What a trial may take, for example 2GB")] = None,
    hang_timeout: Annotated[float, typer.Option(help="Seconds without a report after which a trial has hung")] = 600.0,
    warm_start: Annotated[str | None, typer.Option(help="A study over the same space to learn from")] = None,
    device: Annotated[
        list[str] | None, typer.Option(help="Where the model will be served (onefold devices); may be repeated")
    ] = None,
    serve_for: Annotated[
        str, typer.Option(help="What serving points are for: latency, throughput, energy")
    ] = "throughput",
    serving_search: Annotated[str, typer.Option(help="few, grid, random, tpe, halving")] = "few",
    scenario: Annotated[
        list[str] | None, typer.Option(help="single-stream, server:8@20, multi-stream:100, offline; may be repeated")
    ] = None,
    scenario_goal: GoalOption = "mean",
    largest_batch: LargestBatchOption = None,
    measure: Annotated[
        str, typer.Option(help="What is measured on the devices: trials (every one) or winner (alone)")
    ] = "trials",
    turn_knobs: KnobsOption = "on",
    knobs_for: KnobsForOption = "time",
    reduced_precision: ReducedOption = False,
    compressed: CompressOption = "off",
    save: Annotated[Path | None, typer.Option(help="Copy the best model into this folder")] = None,
    queued: Annotated[bool, typer.Option("--queued", help="Let it wait its turn: onefold submit")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best configuration of a workload and train it."""
    if queued and save is not None:
        raise InputError("a submitted study hands its model over in its own folder; leave --save out")
    _check_place(save)
    limits = Budget(
        trials=trials, minutes=minutes, joules=joules, target=target, kind=budget,  # type: ignore[arg-type]
        min_epochs=min_epochs, max_epochs=max_epochs, min_data=min_data, min_time_s=min_time, max_time_s=max_time,
        eta=eta, growth=growth, fresh=fresh,  # type: ignore[arg-type]
    )  # fmt: skip
    subject = Tunable(workload).compressed(compressed)
    objective = _objective(subject.objective, maximize or [], minimize or [], require or [])
    display = display_for(out, objective, as_json)
    study = Study(
        subject,
        objective=objective,
        budget=limits,
        seed=seed,
        name=name,
        home=home,
        device=device or (),
        knobs=KnobOptions(turn_knobs, knobs_for, reduced=reduced_precision),  # type: ignore[arg-type]
        compress=compressed,  # type: ignore[arg-type]
        on_event=display,
        search=SearchOptions(algorithm=_algorithm(search or []), rungs=rungs, top_k=top_k, warm_start=warm_start),
        serving=ServingOptions(
            optimize_for=serve_for,
            search=serving_search,
            space=space_up_to(largest_batch),
            scenarios=tuple(scenario or ()),
            scenario_goal=scenario_goal,
            measure=measure,  # type: ignore[arg-type]
        ),
        parallelism=ParallelismOptions(
            accelerator=accelerator,
            parallel=parallel,
            threads=threads,
            memory_bytes=parse_bytes(memory) if memory else None,
            hang_timeout_s=hang_timeout,
        ),
    )
    if queued:
        _submit(study, home, as_json)
    else:
        _run(study, display, as_json, save)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    help="Let a study wait for its turn on this machine. Takes what `onefold tune` takes.",
)
def submit(context: typer.Context) -> None:
    """Hands the words on to `tune`."""
    words = ["--help"] if not context.args or "--help" in context.args else [*context.args, "--queued"]
    command = typer.main.get_command(app).commands["tune"]  # type: ignore[attr-defined]
    with command.make_context("onefold submit", words) as inner:
        command.invoke(inner)


@app.command()
def train(
    workload: Annotated[str, typer.Argument(help="FILE.py[:Class], package.module:Class, or a ready workload")],
    config: Annotated[
        Path | None, typer.Option(help="A JSON file with the configuration (default: the workload's defaults)")
    ] = None,
    epochs: Annotated[int, typer.Option(help="How many epochs")] = Budget.max_epochs,
    turn_knobs: KnobsOption = "on",
    knobs_for: KnobsForOption = "time",
    reduced_precision: ReducedOption = False,
    seed: Annotated[int, typer.Option(help="The same seed trains the same")] = 0,
    name: Annotated[str | None, typer.Option(help="What to call the study of this one trial")] = None,
    accelerator: Annotated[str, typer.Option(help="cpu, cuda, cuda:1")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads to begin with (default: one a core)")] = None,
    save: Annotated[Path | None, typer.Option(help="Copy the model into this folder")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one configuration with the machine's knobs tuned while it trains, and say what that gained."""
    _check_place(save)
    subject = Tunable(workload)
    display = display_for(out, subject.objective, as_json)
    study = single_trial(
        subject,
        knobs.read_config(config),
        epochs=epochs,
        knobs=KnobOptions(turn_knobs, knobs_for, reduced=reduced_precision),  # type: ignore[arg-type]
        seed=seed,
        name=name,
        home=home,
        accelerator=accelerator,
        threads=threads,
        on_event=display,
    )
    _run(study, display, as_json, save)
    if not as_json:
        out.print(f"knobs   {knobs.describe_gain(study.knob_records)}", soft_wrap=True)


@app.command()
def resume(
    study: Annotated[str, typer.Argument(help="The study to go on with")],
    trials: Annotated[int | None, typer.Option(help="So many trials more")] = None,
    minutes: Annotated[float | None, typer.Option(help="So many minutes more")] = None,
    joules: Annotated[float | None, typer.Option(help="So much energy more")] = None,
    target: Annotated[float | None, typer.Option(help="A new target")] = None,
    save: Annotated[Path | None, typer.Option(help="Copy the best model into this folder")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study that was cut off or interrupted, or extend one that has ended."""
    _check_place(save)
    found = Study.open(study, home=home)
    found.on_event = display = display_for(out, found.spec.objective, as_json)
    if any(extra is not None for extra in (trials, minutes, joules, target)):
        found.extend(trials=trials, minutes=minutes, joules=joules, target=target)
    before = len(found.trials)
    _run(found, display, as_json, save)
    if not as_json and trials is None and len(found.trials) == before and found.record.reason == DONE:
        out.print(f"note    the study had ended; more trials make it go on: onefold resume {study} --trials 9")


@app.command("list")
def list_studies(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """All studies, newest first."""
    place = Home(home)
    with closing(place.store()) as store:
        records = store.studies()
    running = {record.name for record in records if place.is_running(record.name)}
    if as_json:
        out.out(json.dumps([{**to_json(record), "running": record.name in running} for record in records]))
    elif records:
        out.print(tables.studies(records, running))
    else:
        out.print(f"no studies in {place.path} yet; start one with: onefold tune digits")


@app.command()
def show(
    study: Annotated[str, typer.Argument(help="The study")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Where a study stands: its best trials, its failures, its cost."""
    print_report(_report(study, home), as_json)


@app.command("report")
def write_report(
    study: Annotated[str, typer.Argument(help="The study")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write (default: the study's folder)")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="As text, to the screen or --output")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a study: one HTML file, or the same as text or JSON."""
    report = _report(study, home)
    if as_json or text:
        content = json.dumps(report.as_json(), indent=2) if as_json else report.as_text()
        if output is None:
            out.out(content)
            return
    else:
        content = report.as_html()
        output = output or Home(home).folder(study) / "report.html"
    try:
        output.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report cannot be written to {output}: {error.strerror}") from error
    out.print(f"written to {output}", soft_wrap=True)


@app.command()
def workloads() -> None:
    """The workloads that come with Onefold."""
    for name, reference in ready_workloads().items():
        out.print(f"{name:20} {reference}")


def _run(study: Study, display: Display, as_json: bool, save: Path | None) -> None:
    try:
        with display:
            result = study.run()
    except KeyboardInterrupt:
        if not as_json:
            _show_so_far(study)
        err.print(f"interrupted; nothing is lost. Go on with: onefold resume {study.name}")
        raise typer.Exit(130) from None
    if not as_json:
        _conclude(result)
    if save is not None:
        result.save(save)
        if not as_json:
            out.print(f"saved   {save}", soft_wrap=True)


def _submit(study: Study, home: Path | None, as_json: bool) -> None:
    line = Queue(Home(home))
    before = line.submit(study)
    line.serve_in_background()
    if as_json:
        out.out(json.dumps({"study": study.name, "before": before}))
    else:
        out.print(f"submitted {study.name}; {before} before it. See: onefold queue, onefold show {study.name}")


def _check_place(save: Path | None) -> None:
    """Raises InputError when a model cannot be saved there: better told now than after all training."""
    if save is None:
        return
    place = next(place for place in (save.absolute(), *save.absolute().parents) if os.access(place, os.F_OK))
    if not place.is_dir():
        raise InputError(f"--save is a folder for the model, but {place} is a file; give another place")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"--save is a folder for the model, but {place} may not be written; give another place")


def _show_so_far(study: Study) -> None:
    """What an interrupted study leaves behind, if it has found something."""
    found, objective, trials = study.record.result, study.spec.objective, study.trials
    if not found:
        return
    out.print()
    if ranked(trials, objective):
        out.print(tables.best_trials(trials, objective))
        out.print()
    reached = results(found["metrics"], objective)
    out.print(Text.assemble(("so far", "bold green"), f"  trial {found['trial']}: {reached}"), soft_wrap=True)
    out.print(f"        {settings(found['config'])}", soft_wrap=True)
    out.print(f"model   {study.folder / 'best'}", soft_wrap=True)


def _conclude(result: Result) -> None:
    out.print()
    out.print(tables.best_trials(result.trials, result.objective))
    out.print()
    reached = results(result.metrics, result.objective)
    reasons = result.recommendation
    if not result.is_feasible:
        missed = ", ".join(f"{metric}{bound}" for metric, bound in result.objective.require.items())
        told = reasons.shortfalls if reasons is not None else ()
        for line in told or (f"No trial keeps {missed}; the nearest is shown.",):
            out.print(Text(line, style="bold yellow"), soft_wrap=True)
    test = f"; on test data: {results(result.test, result.objective)}" if result.test else ""
    out.print(Text.assemble(("winner", "bold green"), f"  trial {result.best.number}: {reached}{test}"), soft_wrap=True)
    out.print(f"        {settings(result.config)}", soft_wrap=True)
    if len(result.objective.goals) > 1:
        front = ", ".join(str(trial.number) for trial in result.front)
        out.print(f"front   trials {front}: no other beats one of them in every goal", soft_wrap=True)
    for device, surface in result.surfaces.items():
        out.print(f"serving {device}: {phrases.serving(surface)}", soft_wrap=True)
    for reason in reasons.reasons if reasons is not None and result.surfaces else ():
        out.print(f"why     {reason}", soft_wrap=True)
    if result.shortlist is not None:
        where = f"; in {result.compressed}" if result.compressed is not None else ""
        out.print(f"smaller {result.shortlist.why}{where}", soft_wrap=True)
    spent = f"after {duration(result.elapsed_s)}; {tables.cost(result.cost)}"
    out.print(f"ended   {result.reason}, {spent}", soft_wrap=True)
    out.print(f"model   {result.folder / 'best'}", soft_wrap=True)
    out.print(f"report  {result.report}", soft_wrap=True)


def _objective(own: Objective, maximize: list[str], minimize: list[str], require: list[str]) -> Objective:
    """The workload's own objective, unless goals are given; bounds are added to either."""
    bounds = {**own.require, **dict(requirement(text) for text in require)}
    if not maximize and not minimize:
        maximize = [goal.metric for goal in own.goals if goal.maximize]
        minimize = [goal.metric for goal in own.goals if not goal.maximize]
    return Objective(maximize, minimize, bounds)


def _algorithm(given: list[str]) -> str | dict[str, str]:
    if not given:
        return "tpe"
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    groups = dict(text.partition("=")[::2] for text in given)
    if not all(groups.values()):
        raise InputError(f"give one algorithm, or one for each group such as --search model=grid, but got {given}")
    return groups


def _report(study: str, home: Path | None) -> Report:
    from onefold.report import StudyReport

    with closing(Home(home).store()) as store:
        return StudyReport(summary_of(study, store))
