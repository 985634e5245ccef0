"""`onefold impact`: how hyperparameters and compression affect the properties of a workload's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onefold.cli.console import err, out, print_report
from onefold.cli.display import Display, display_for
from onefold.cli.options import (
    AcceleratorOption,
    HomeOption,
    JsonOption,
    KnobsOption,
    MemoryOption,
    ParallelOption,
    ThreadsOption,
)
from onefold.cli.recipe_options import with_recipe_options
from onefold.compression.registry import recipe_of_settings
from onefold.device.catalog import HOST
from onefold.store.home import Home
from onefold.study.options import ParallelismOptions
from onefold.study.tunable import Tunable
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import parse_bytes
from onefold.vocabulary.records import Value

if TYPE_CHECKING:
    from onefold.impact_analysis.api import ImpactOptions, ImpactResult

WorkloadsArgument = Annotated[
    list[str],
    typer.Argument(
        help="FILE.py[:Class], package.module:Class, or a bundled workload (onefold workloads); several are compared"
    ),
]
COMPARISON = "side-by-side.html"
PAPER_SETTINGS: dict[str, Value] = {"sparsity": 0.8, "precision": "int8"}


def impact(
    context: typer.Context,
    workloads: WorkloadsArgument,
    settings: Mapping[str, Value],
    trials: Annotated[int, typer.Option(help="Configurations per arm")] = 30,
    best: Annotated[
        int | None,
        typer.Option(help="Models per arm to train fully and compare (default: 10, or all of fewer trials)"),
    ] = None,
    max_epochs: Annotated[
        int | None,
        typer.Option(help="Epochs of the full training; by default the most that the space's epochs allow, or else 4"),
    ] = None,
    min_data: Annotated[float, typer.Option(help="Share of the data in the first, short training")] = 0.2,
    device: Annotated[str, typer.Option(help="Device to measure the models on")] = HOST,
    server: Annotated[
        str | None, typer.Option(help="Device to measure the plain models on, if it is another one")
    ] = None,
    fine_tuning_epochs: Annotated[
        int, typer.Option(help="Epochs of fine-tuning after pruning", rich_help_panel="Compression")
    ] = 1,
    plain: Annotated[
        bool, typer.Option("--plain", help="Analyze plain models only", rich_help_panel="Compression")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of all decisions and statistics")] = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the study; an unfinished one of that name continues")
    ] = None,
    accelerator: AcceleratorOption = "cpu",
    parallel: ParallelOption = None,
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    knobs: KnobsOption = "on",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Copy the HTML report here")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Analyze which hyperparameters are worth tuning: tune all, then hold each at its default, and compare."""
    from onefold.impact_analysis import api
    from onefold.report.impact import ImpactReport

    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise InputError(f"the report cannot be written to {output}; give a file in an existing folder")
    if plain:
        _check_plain(context, (*settings, "server", "fine_tuning_epochs"), server)
    home_folder = Home(home)
    options = api.ImpactOptions(trials, best, max_epochs, min_data, fine_tuning_epochs)
    tunables = [Tunable(workload) for workload in workloads]
    if len({tunable.name for tunable in tunables}) < len(tunables):
        raise InputError(f"workloads are compared by name, but {', '.join(workloads)} share one; rename one of them")
    name = name or api.default_name(tunables, home_folder)
    names = [f"{name}-{tunable.name}" if len(tunables) > 1 else name for tunable in tunables]
    if len(tunables) > 1:
        _check_workloads(tunables, names, options, seed, home_folder)
    results = []
    for tunable, study_name in zip(tunables, names):
        display: Display | None = None if as_json else display_for(out, tunable.objective)
        try:
            with display or nullcontext():
                result = api.impact(
                    tunable,
                    device=device,
                    server=server,
                    recipe=None if plain else recipe_of_settings(settings),
                    options=options,
                    parallelism=ParallelismOptions(
                        parallel=parallel,
                        threads=threads,
                        accelerator=accelerator,
                        memory_bytes=parse_bytes(memory) if memory else None,
                    ),
                    knobs=knobs,
                    seed=seed,
                    name=study_name,
                    home=home_folder,
                    on_event=display or (lambda _: None),
                )
        except KeyboardInterrupt:
            err.print(f"interrupted; nothing is lost. Continue with the same command and --name {name}")
            raise typer.Exit(130) from None
        results.append(result)
        if not as_json:
            print_report(ImpactReport(result.findings))
            out.print(f"study   {result.study}")
            out.print(f"figures {result.figures}", soft_wrap=True)
            out.print(f"report  {output if output and len(tunables) == 1 else result.report}", soft_wrap=True)
    if len(results) > 1:
        _compare(results, output or results[-1].report.with_name(COMPARISON), as_json)
        return
    if output is not None:
        _write(output, results[0].report.read_text(encoding="utf-8"))
    if as_json:
        print_report(ImpactReport(results[0].findings), as_json=True)


def _check_plain(context: typer.Context, names: Sequence[str], server: str | None) -> None:
    """Raise InputError for options that have no meaning without compression."""
    given = [name for name in names if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"]
    if not given:
        return
    listed = ", ".join(f"--{name.replace('_', '-')}" for name in given)
    if server is not None:
        raise InputError(
            f"--plain analyzes plain models only, on --device; leave {listed} out, or measure them on --device {server}"
        )
    raise InputError(f"--plain analyzes models without compression; leave out either --plain or {listed}")


def _check_workloads(
    tunables: Sequence[Tunable], names: Sequence[str], options: ImpactOptions, seed: int, home: Home
) -> None:
    """Raise InputError, which names the workload, if one of several cannot be analyzed, before the first begins."""
    from onefold.impact_analysis.api import plan_analysis

    options.check()
    for tunable, name in zip(tunables, names):
        try:
            plan_analysis(tunable, options, seed=seed, name=name, home=home)
        except InputError as error:
            raise InputError(f"the workload {tunable.name} cannot be analyzed: {error}") from error


def _compare(results: Sequence[ImpactResult], page: Path, as_json: bool) -> None:
    """Print several analyses side by side, and write the page."""
    from onefold.report.impact import SideBySideReport

    comparison = SideBySideReport([result.findings for result in results])
    _write(page, comparison.as_html())
    print_report(comparison, as_json)
    if not as_json:
        out.print(f"side by side {page}", soft_wrap=True)


def _write(page: Path, html: str) -> None:
    try:
        page.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report cannot be written to {page} ({error}); give another --output") from error


command = with_recipe_options(impact, defaults=PAPER_SETTINGS)
