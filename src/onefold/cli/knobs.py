"""`onefold knobs`: list, export and import remembered knobs. Also the input and output of `onefold train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.report.phrases import step
from onefold.training.api import export_knobs, import_knobs, remembered_knobs
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
from onefold.vocabulary.quantities import count, duration, joules, settings
from onefold.vocabulary.records import to_json

app = typer.Typer(help="List, export and import remembered knobs.", invoke_without_command=True)
NUMERIC_COLUMNS = ("step before", "step after", "gain")


@app.callback()
def list_knobs(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the best knobs of earlier jobs by machine."""
    if context.invoked_subcommand is not None:
        return
    memories = remembered_knobs(home)
    if as_json:
        out.out(json.dumps(to_json(memories)))
    elif memories:
        out.print(_table(memories))
    else:
        out.print("no knobs are remembered yet; train a workload with: onefold train digits")


@app.command("export")
def export_to_file(path: Annotated[Path, typer.Argument(help="The file to write")], home: HomeOption = None) -> None:
    """Write all remembered knobs to a file; it contains performance counters, but no data and no models."""
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
        content = json.loads(path.read_text(encoding="utf-8"))
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


def _table(memories: list[KnobMemory]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("machine", "optimized for", "knobs", *NUMERIC_COLUMNS, "profiled"):
        table.add_column(column, justify="right" if column in NUMERIC_COLUMNS else "left")
    for memory in memories:
        quantity = joules if memory.aim == "energy" else duration
        table.add_row(
            memory.machine,
            memory.aim,
            settings(memory.knobs),
            quantity(memory.found),
            quantity(memory.reached),
            f"{memory.gain:.2f}x",
            ", ".join(memory.profile.made_of),
        )
    return table
