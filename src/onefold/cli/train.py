"""`onefold train`: train one configuration with its knobs tuned while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onefold.cli.console import out
from onefold.cli.display import display_for
from onefold.cli.knobs import describe_gain, read_config
from onefold.cli.options import (
    PARALLELISM,
    AcceleratorOption,
    HomeOption,
    JsonOption,
    KnobsOption,
    NameOption,
    OptimizeKnobsOption,
    ReducedPrecisionOption,
    SaveOption,
    WorkloadArgument,
)
from onefold.cli.study_run import check_save_folder, run
from onefold.study.api import single_trial
from onefold.study.tunable import Tunable
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.knobs import KnobOptions


def train(
    workload: WorkloadArgument,
    config: Annotated[
        Path | None, typer.Option(help="JSON file with the configuration (default: the workload's defaults)")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Number of epochs")] = Budget.max_epochs,
    seed: Annotated[int, typer.Option(help="Seed of the training")] = 0,
    knobs: KnobsOption = "on",
    optimize_knobs_for: OptimizeKnobsOption = "time",
    reduced_precision: ReducedPrecisionOption = False,
    accelerator: AcceleratorOption = "cpu",
    threads: Annotated[
        int | None, typer.Option(help="Threads to start with (default: one per core)", rich_help_panel=PARALLELISM)
    ] = None,
    save: SaveOption = None,
    name: NameOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one configuration with its knobs tuned while it trains, and report the gain."""
    check_save_folder(save)
    tunable = Tunable(workload)
    display = display_for(out, tunable.objective, as_json)
    study = single_trial(
        tunable,
        read_config(config),
        epochs=epochs,
        knobs=KnobOptions(knobs, optimize_knobs_for, reduced=reduced_precision),  # type: ignore[arg-type]
        seed=seed,
        name=name,
        home=home,
        accelerator=accelerator,
        threads=threads,
        on_event=display,
    )
    run(study, display, as_json, save)
    if not as_json:
        out.print(f"knobs   {describe_gain(study.knob_records)}", soft_wrap=True)
