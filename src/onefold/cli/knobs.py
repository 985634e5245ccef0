"""`onefold knobs`: what is remembered of earlier jobs. Also what `onefold train` reads and says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.report.phrases import step
from onefold.training.api import export_knobs, import_knobs, known_knobs
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.knobs import Remembered, Steered, changed, gained
from onefold.vocabulary.quantities import count, duration, joules, settings
from onefold.vocabulary.records import to_json

app = typer.Typer(help="What is remembered of knobs.", invoke_without_command=True)


@app.callback()
def remembered(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Which knobs were best for which jobs, on which machine."""
    if context.invoked_subcommand is not None:
        return
    known = known_knobs(home)
    if as_json:
        out.out(json.dumps(to_json(known)))
    elif known:
        out.print(_table(known))
    else:
        out.print("nothing is remembered of knobs yet; train something with: onefold train digits")


@app.command("export")
def export_them(path: Annotated[Path, typer.Argument(help="The file to write")], home: HomeOption = None) -> None:
    """Write all that is remembered to a file; it holds counters only, nothing of data or models."""
    out.print(f"{count(export_knobs(path, home), 'job')} written to {path}", soft_wrap=True)


@app.command("import")
def import_them(
    path: Annotated[Path, typer.Argument(help="A file that `onefold knobs export` wrote")], home: HomeOption = None
) -> None:
    """Remember what such a file holds: a warm start on the same kind of machine."""
    out.print(f"{count(import_knobs(path, home), 'job')} remembered from {path}", soft_wrap=True)


def read_config(path: Path | None) -> dict[str, Any]:
    """A configuration in a JSON file; a model card will do, too."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"the configuration {path} is not JSON: {error}") from error
    content = content.get("config", content) if isinstance(content, dict) else content
    if not isinstance(content, dict):
        raise InputError(f'a configuration reads like {{"lr": 0.01, "batch_size": 64}}, but {path} holds no such thing')
    return content


def what_was_gained(steered: list[Steered]) -> str:
    """What turning knobs came to, in one sentence."""
    found = gained(steered)
    if not steered:
        return "left as they were"
    if found is None:
        return "left as they were: no similar job is known, or there were too few steps to try any"
    before, after = found
    told = settings(changed(before, after)) or "left as they were: nothing beat them"
    return f"{told}; a step took {step(before)} and takes {step(after)} now ({before.step_s / after.step_s:.2f}x)"


def _table(known: list[Remembered]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("machine", "for", "knobs", "a step before", "after", "gain", "profile of"):
        table.add_column(column, justify="right" if column in ("a step before", "after", "gain") else "left")
    for one in known:
        unit = joules if one.aim == "energy" else duration
        table.add_row(
            one.machine,
            one.aim,
            settings(one.knobs),
            unit(one.found),
            unit(one.reached),
            f"{one.gain:.2f}x",
            ", ".join(one.profile.made_of),
        )
    return table
