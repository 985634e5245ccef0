"""`onefold queue`: studies that wait for this machine, first come, first served."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime

import typer
from rich.table import Table

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.store import Submission
from onefold.study import Home
from onefold.study.queue import Queue
from onefold.vocabulary.quantities import duration
from onefold.vocabulary.records import to_json

app = typer.Typer(help="Studies that wait for this machine.", invoke_without_command=True)


@app.callback()
def waiting(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """All studies that were submitted, how long they waited and how long until their answer."""
    if context.invoked_subcommand is not None:
        return
    place = Home(home)
    found = Queue(place).submissions()
    if as_json:
        out.out(json.dumps([{**to_json(one), "response_s": one.response_s} for one in found]))
        return
    if not found:
        out.print("nothing was submitted yet; try: onefold submit digits --trials 6")
        return
    running = {one.study for one in found if place.is_running(one.study)}
    with closing(place.store()) as store:
        states = {one.study: store.study(one.study).state.value for one in found}
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("study", "state", "submitted", "waited", "response"):
        table.add_column(column, justify="right" if column in ("waited", "response") else "left")
    for one in found:
        state = states[one.study] if one.ended else "running" if one.study in running else "waiting"
        table.add_row(one.study, state, _moment(one), _waited(one), duration(one.response_s))
    out.print(table)
    left = [one for one in found if one.ended is None]
    if left and not Queue(place).is_served:
        out.print("nobody serves the queue; go on with: onefold queue run")


@app.command("run")
def run_queue(home: HomeOption = None) -> None:
    """Serve the queue until nobody waits."""
    served = Queue(Home(home)).run(on_event=lambda line: out.print(line, soft_wrap=True))
    out.print(f"the queue is empty; {served} {'study' if served == 1 else 'studies'} served")


def _moment(one: Submission) -> str:
    return datetime.fromtimestamp(one.submitted, UTC).strftime("%Y-%m-%d %H:%M")


def _waited(one: Submission) -> str:
    return duration((one.began or time.time()) - one.submitted)
