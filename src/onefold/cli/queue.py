"""`onefold queue`: studies that wait for this machine, first come, first served."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import UTC, datetime

import typer

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.cli.tables import plain_table
from onefold.study import Home
from onefold.study.queue import Queue
from onefold.vocabulary.quantities import duration
from onefold.vocabulary.records import to_json

app = typer.Typer(help="List and run queued studies.", invoke_without_command=True)


@app.callback()
def list_queue(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List all submitted studies with their waiting and response times."""
    if context.invoked_subcommand is not None:
        return
    home_folder = Home(home)
    submissions = Queue(home_folder).submissions()
    if as_json:
        out.out(json.dumps([{**to_json(item), "response_s": item.response_s} for item in submissions]))
        return
    if not submissions:
        out.print("no study was submitted yet; submit one with: onefold submit digits --trials 6")
        return
    running = {item.study for item in submissions if home_folder.is_running(item.study)}
    with closing(home_folder.store()) as store:
        states = {item.study: store.study(item.study).state.value for item in submissions}
    table = plain_table("study", "state", "submitted", "waited", "response", right=("waited", "response"))
    for item in submissions:
        state = states[item.study] if item.ended else "running" if item.study in running else "waiting"
        submitted = datetime.fromtimestamp(item.submitted, UTC).strftime("%Y-%m-%d %H:%M")
        waited = duration((item.began or time.time()) - item.submitted)
        table.add_row(item.study, state, submitted, waited, duration(item.response_s))
    out.print(table)
    if not all(item.ended for item in submissions) and not Queue(home_folder).is_served:
        out.print("no process serves the queue; continue with: onefold queue run")


@app.command("run")
def run_queue(home: HomeOption = None) -> None:
    """Run the queued studies until the queue is empty."""
    served = Queue(Home(home)).run(on_event=lambda line: out.print(line, soft_wrap=True))
    out.print(f"the queue is empty; {served} {'study' if served == 1 else 'studies'} run")
