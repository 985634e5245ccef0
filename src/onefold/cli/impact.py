"""`onefold impact`: how hyperparameters and compression affect the properties of a workload's models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

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
    WorkloadArgument,
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

PAPER_SETTINGS: dict[str, Value] = {"sparsity": 0.8, "precision": "int8"}


def impact(
    workload: WorkloadArgument,
    settings: Mapping[str, Value],
    trials: Annotated[int, typer.Option(help="Configurations per arm")] = 30,
    best: Annotated[int, typer.Option(help="Models per arm to train fully and compare")] = 10,
    max_epochs: Annotated[int, typer.Option(help="Epochs of the full training")] = 4,
    min_data: Annotated[float, typer.Option(help="Share of the data in the first, short training")] = 0.2,
    device: Annotated[str, typer.Option(help="Device to measure the models on")] = HOST,
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
    tunable, home_folder = Tunable(workload), Home(home)
    study_name = name or api.default_name(tunable, home_folder)
    display: Display | None = None if as_json else display_for(out, tunable.objective)
    try:
        with display or nullcontext():
            result = api.impact(
                tunable,
                device=device,
                recipe=None if plain else recipe_of_settings(settings),
                options=api.ImpactOptions(trials, best, max_epochs, min_data, fine_tuning_epochs),
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
        err.print(f"interrupted; nothing is lost. Continue with the same command and --name {study_name}")
        raise typer.Exit(130) from None
    if output is not None:
        try:
            shutil.copyfile(result.report, output)
        except OSError as error:
            raise InputError(f"the report cannot be written to {output} ({error}); it is in {result.report}") from error
    print_report(ImpactReport(result.findings), as_json)
    if as_json:
        return
    out.print(f"study   {result.study}")
    out.print(f"figures {result.figures}", soft_wrap=True)
    out.print(f"report  {output or result.report}", soft_wrap=True)


command = with_recipe_options(impact, defaults=PAPER_SETTINGS)
