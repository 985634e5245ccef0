"""`onefold impact`: what tuning and compression change about a workload's models, and what to do about it."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli.console import err, out, print_report
from onefold.cli.display import Display, display_for
from onefold.cli.options import HomeOption, JsonOption, KnobsOption
from onefold.device.catalogue import HOST
from onefold.store.home import Home
from onefold.study.tunable import Tunable
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.quantities import parse_bytes
from onefold.vocabulary.variants import Recipe


def impact(
    workload: Annotated[str, typer.Argument(help="FILE.py[:Class], package.module:Class, or a ready workload")],
    trials: Annotated[int, typer.Option(help="Configurations of each arm")] = 30,
    best: Annotated[int, typer.Option(help="How many of each arm are trained in full and compared")] = 10,
    max_epochs: Annotated[int, typer.Option(help="Epochs of the full training")] = 4,
    min_data: Annotated[float, typer.Option(help="Share of the data in the first, short training")] = 0.2,
    device: Annotated[str, typer.Option(help="Where the models will be served")] = HOST,
    sparsity: Annotated[float, typer.Option(help="How models are compressed: the share of zeros")] = 0.8,
    channels: Annotated[float, typer.Option(help="… the share of channels to take out")] = 0.0,
    precision: Annotated[str, typer.Option(help="… fp32, fp16, int8, int8-dynamic")] = "int8",
    epochs: Annotated[int, typer.Option(help="Epochs of training after pruning")] = 1,
    plain: Annotated[bool, typer.Option("--plain", help="Compress nothing: plain models only")] = False,
    seed: Annotated[int, typer.Option(help="The same seed draws the same configurations")] = 0,
    name: Annotated[
        str | None, typer.Option(help="What to call the study; one that was cut off goes on under its name")
    ] = None,
    accelerator: Annotated[str, typer.Option(help="cpu, cuda, cuda:1")] = "cpu",
    parallel: Annotated[int | None, typer.Option(help="Trials side by side (default: measured)")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each, with --parallel")] = None,
    memory: Annotated[str | None, typer.Option(help="What a trial may take, for example 2GB")] = None,
    turn_knobs: KnobsOption = "on",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Copy the page here")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find out which hyperparameters are worth tuning for what: tune all, then hold each one fixed, and compare."""
    from onefold.impact_analysis.api import impact_of, name_for
    from onefold.report.impact import ImpactReport

    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise InputError(f"the page cannot be written to {output}; give a file in a folder that exists")
    subject, place = Tunable(workload), Home(home)
    called = name or name_for(subject, place)
    display: Display | None = None if as_json else display_for(out, subject.objective)
    try:
        with display or nullcontext():
            found = impact_of(
                subject,
                trials=trials,
                best=best,
                max_epochs=max_epochs,
                min_data=min_data,
                recipe=None if plain else Recipe(sparsity, channels, precision),
                epochs=epochs,
                device=device,
                seed=seed,
                name=called,
                home=place,
                accelerator=accelerator,
                parallel=parallel,
                threads=threads,
                memory_bytes=parse_bytes(memory) if memory else None,
                knobs=turn_knobs,
                on_event=display or (lambda _: None),
            )
    except KeyboardInterrupt:
        err.print(f"interrupted; nothing is lost. Go on with the same command and --name {called}")
        raise typer.Exit(130) from None
    if output is not None:
        try:
            shutil.copyfile(found.report, output)
        except OSError as error:
            raise InputError(f"the page cannot be written to {output} ({error}); it is in {found.report}") from error
    print_report(ImpactReport(found.findings), as_json)
    if as_json:
        return
    out.print(f"study   {found.study}")
    out.print(f"figures {found.figures}", soft_wrap=True)
    out.print(f"report  {output or found.report}", soft_wrap=True)
