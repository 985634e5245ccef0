"""`onefold knobs`: list, profile, export and import remembered knobs. Also input and output of `onefold train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption, OptimizeKnobsOption
from onefold.report.phrases import step
from onefold.study.knob_campaign import BATCH_SIZES, EPOCHS, REPEATS, profile_knobs
from onefold.training.api import export_knobs, import_knobs, knob_groups, remembered_knobs
from onefold.vocabulary.documents import read_json
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import (
    KnobMemory,
    KnobRecord,
    changed_knobs,
    default_knobs,
    knob_gain,
    knobs_in_use,
    why_no_gain,
)
from onefold.vocabulary.quantities import count, duration, joules, settings, share
from onefold.vocabulary.records import to_json

app = typer.Typer(help="List, profile, export and import remembered knobs.", invoke_without_command=True)
NUMERIC_COLUMNS = ("step before", "step after", "gain")
DEFAULT_BATCH_SIZES = ",".join(map(str, BATCH_SIZES))
MAX_KINDS = 2  # of operators that describe a job


@app.callback()
def list_knobs(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the best knobs of earlier jobs in groups of similar jobs, which reuse each other's knobs."""
    if context.invoked_subcommand is not None:
        return
    memories = remembered_knobs(home)
    groups = knob_groups(memories)
    if as_json:
        out.out(json.dumps([{**to_json(memory), "group": group} for memory, group in zip(memories, groups)]))
    elif memories:
        out.print(_table(memories, groups))
    else:
        out.print("no knobs are remembered yet; train a workload with: onefold train digits")


@app.command("profile")
def profile(
    workloads: Annotated[list[str], typer.Argument(help="Workloads such as digits or file.py:Class")],
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, separated by commas")] = DEFAULT_BATCH_SIZES,
    repeats: Annotated[int, typer.Option(help="How often each job is profiled")] = REPEATS,
    epochs: Annotated[int, typer.Option(help="Epochs of each job")] = EPOCHS,
    optimize_knobs_for: OptimizeKnobsOption = "time",
    home: HomeOption = None,
) -> None:
    """Probe all knobs of several jobs before they are needed, so that later jobs find similar ones."""
    try:
        sizes = [int(size) for size in batch_sizes.split(",")]
    except ValueError as error:
        raise InputError(f"expected batch sizes such as 32,64, got {batch_sizes!r}") from error
    jobs = profile_knobs(
        workloads,
        batch_sizes=sizes,
        repeats=repeats,
        epochs=epochs,
        optimize_for=optimize_knobs_for,
        home=home,
        on_event=lambda _: None,
    )
    for job in jobs:
        size = job.config.get("batch_size")
        name = job.workload if size is None else f"{job.workload}, batch size {size}"
        out.print(f"{name}: {describe_gain(list(job.records))}", soft_wrap=True)


@app.command("export")
def export_to_file(path: Annotated[Path, typer.Argument(help="The file to write")], home: HomeOption = None) -> None:
    """Write all remembered knobs to a file: machine, profile, knobs and costs, but no data, weights, code or names."""
    out.print(f"{count(export_knobs(path, home), 'job')} written to {path}", soft_wrap=True)


@app.command("import")
def import_from_file(
    path: Annotated[Path, typer.Argument(help="A file written by `onefold knobs export`")], home: HomeOption = None
) -> None:
    """Remember the knobs in a file: a warm start on the same kind of machine."""
    out.print(f"{count(import_knobs(path, home), 'job')} imported from {path}", soft_wrap=True)


def read_config(path: Path | None) -> dict[str, Any]:
    """Return the configuration in a JSON file or in a model card; empty without a file."""
    if path is None:
        return {}
    try:
        content = read_json(path)
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"the configuration {path} is not valid JSON: {error}") from error
    content = content.get("config", content) if isinstance(content, dict) else content
    if not isinstance(content, dict):
        raise InputError(f'expected a configuration such as {{"lr": 0.01, "batch_size": 64}} in {path}')
    return content


def describe_gain(records: list[KnobRecord]) -> str:
    """Return one sentence about the final knobs and the speed-up of a step."""
    if not records:
        return "defaults"
    windows = knob_gain(records)
    if windows is None:
        changed = settings(changed_knobs(default_knobs(records), knobs_in_use(records)))
        return f"{changed or 'defaults'}: {why_no_gain(records)}"
    before, after = windows
    changed = settings(changed_knobs(before.knobs, after.knobs))
    return f"{changed}; step time {step(before)} before, {step(after)} after ({before.step_s / after.step_s:.2f}x)"


def _table(memories: list[KnobMemory], groups: list[int]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("group", "computes", "machine", "optimized for", "knobs", *NUMERIC_COLUMNS, "load", "profiled"):
        table.add_column(column, justify="right" if column in NUMERIC_COLUMNS else "left")
    for group, memory in sorted(zip(groups, memories), key=lambda pair: pair[0]):
        quantity = joules if memory.aim == "energy" else duration
        table.add_row(
            str(group),
            _computation(memory),
            memory.machine,
            memory.aim,
            settings(memory.knobs),
            quantity(memory.found),
            quantity(memory.reached),
            f"{memory.gain:.2f}x",
            f"{memory.load:.1f}",
            ", ".join(memory.profile.made_of),
        )
    return table


def _computation(memory: KnobMemory) -> str:
    """Return what most elements of a job's operators are computed for: "convolution 62 %, matrix 20 %"."""
    shares = {
        name.removesuffix("_share"): value
        for name, value in memory.profile.features.items()
        if name.endswith("_share") and name != "system_share"
    }
    largest = sorted(shares.items(), key=lambda entry: -entry[1])[:MAX_KINDS]
    return ", ".join(f"{kind} {share(value)}" for kind, value in largest if value > 0)
