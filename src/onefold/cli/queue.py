"""`onefold queue`: studies that wait for this machine, those that it ran, and the shares of tenants."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from onefold.cli.console import out
from onefold.cli.options import HomeOption, JsonOption
from onefold.cli.tables import plain_table
from onefold.processes.clock import now
from onefold.store import Job
from onefold.study import Home
from onefold.study.attempts import Liveness
from onefold.study.queue import Queue
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.moment import Moment
from onefold.vocabulary.quantities import duration

app = typer.Typer(help="List and run queued studies.", invoke_without_command=True)


@app.callback()
def list_queue(context: typer.Context, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List all submitted studies with their waiting and response times."""
    if context.invoked_subcommand is not None:
        return
    home_folder = Home(home)
    queue = Queue(home_folder)
    jobs = queue.jobs()
    if as_json:
        out.out(json.dumps([_facts(job) for job in jobs]))
        return
    if not jobs:
        out.print("no study was submitted yet; submit one with: onefold submit digits --trials 6")
        return
    with closing(home_folder.store()) as store:
        states = {job.study: store.study(job.study).state.value for job in jobs}
    table = plain_table("study", "tenant", "state", "submitted", "waited", "response", right=("waited", "response"))
    for job in jobs:
        state = states[job.study] if job.ended else "running" if _is_running(job, home_folder) else "waiting"
        submitted = datetime.fromtimestamp(job.submitted.wall_s, UTC).strftime("%Y-%m-%d %H:%M")
        table.add_row(
            job.study, job.tenant, state, submitted, duration(job.waited_s(now())), duration(job.response_s)
        )  # fmt: skip
    out.print(table)
    if not all(job.ended for job in jobs):
        _describe_server(queue)


def _facts(job: Job) -> dict[str, Any]:
    attempts = [
        {
            "number": attempt.number,
            "cores": attempt.cores,
            "began": attempt.began.wall_s,
            "ended": _wall_s(attempt.ended),
            "outcome": attempt.outcome,
        }
        for attempt in job.attempts
    ]
    return {
        "study": job.study,
        "tenant": job.tenant,
        "folder": job.folder,
        "submitted": job.submitted.wall_s,
        "began": _wall_s(job.began),
        "ended": _wall_s(job.ended),
        "waited_s": job.waited_s(now()),
        "response_s": job.response_s,
        "attempts": attempts,
    }


def _wall_s(moment: Moment | None) -> float | None:
    return None if moment is None else moment.wall_s


def _is_running(job: Job, home: Home) -> bool:
    return home.is_running(job.study) or (job.attempt is not None and Liveness().is_alive(job.attempt))


def _describe_server(queue: Queue) -> None:
    if not queue.is_served:
        out.print("no process serves the queue; continue with: onefold queue run")
        return
    server = queue.server
    if server is not None and server.is_suspended:
        out.print(f"the process that serves the queue is suspended; continue it with: kill -CONT {server.pid}")


@app.command("run")
def run_queue(home: HomeOption = None) -> None:
    """Run the queued studies until the queue is empty."""
    served = Queue(Home(home)).run(on_event=lambda line: out.print(line, soft_wrap=True))
    out.print(f"the queue is empty; {served} {'study' if served == 1 else 'studies'} run")


@app.command("shares")
def share_queue(
    shares: Annotated[list[str] | None, typer.Argument(help="Such as ann=2 bob=1", metavar="[TENANT=SHARE]...")] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="Forget the shares: first come, first served")] = False,
    home: HomeOption = None,
) -> None:
    """Show the tenants' shares of the machine, or replace them."""
    queue = Queue(Home(home))
    if fifo and shares:
        raise InputError("--fifo forgets all shares; leave out either --fifo or the shares")
    if fifo or shares:
        queue.share(dict(map(_share, shares or ())))
    stored = queue.shares
    if not stored:
        out.print("first come, first served")
        return
    total = sum(stored.values())
    table = plain_table("tenant", "share", "of all tenants", right=("share", "of all tenants"))
    for tenant, share in stored.items():
        table.add_row(tenant, f"{share:g}", f"{share / total:.0%}")
    out.print(table)


def _share(text: str) -> tuple[str, float]:
    tenant, _, share = text.partition("=")
    try:
        return tenant, float(share)
    except ValueError:
        raise InputError(f"a share is given as TENANT=NUMBER, such as ann=2, but got {text!r}") from None
