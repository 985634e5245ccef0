"""The command `onefold`.

Exit codes: 0 success, 2 bad input, 3 store error, 4 the study has no model, 5 no workers, 130 interrupted
(resume it), 1 anything else.
"""

from __future__ import annotations

import typer

from onefold.cli import (
    agent,
    compare,
    compress,
    devices,
    impact,
    knobs,
    queue,
    retrain,
    serving,
    shift,
    studies,
    train,
    tune,
)
from onefold.cli import compile as compile_command
from onefold.cli.command_group import new_app, run
from onefold.cli.console import out
from onefold.vocabulary.workload_reference import bundled_workloads

app = new_app()

TUNING, DEPLOYMENT, MACHINE = "Tune and train", "Deploy", "This machine and its devices"

app.command("tune", rich_help_panel=TUNING)(tune.tune)
app.command("train", rich_help_panel=TUNING)(train.train)
app.command("resume", rich_help_panel=TUNING)(studies.resume)
app.command("list", rich_help_panel=TUNING)(studies.list_studies)
app.command("show", rich_help_panel=TUNING)(studies.show)
app.command("report", rich_help_panel=TUNING)(studies.write_report)
app.command("export", rich_help_panel=TUNING)(studies.export)
app.command("compare", rich_help_panel=TUNING)(compare.compare)
app.command("impact", rich_help_panel=TUNING)(impact.command)
app.command("measure", rich_help_panel=DEPLOYMENT)(serving.measure)
app.command("serve", rich_help_panel=DEPLOYMENT)(serving.serve)
app.command("serve-check", rich_help_panel=DEPLOYMENT)(serving.serve_check)
app.command("compress", rich_help_panel=DEPLOYMENT)(compress.command)
app.command("compile", rich_help_panel=DEPLOYMENT)(compile_command.compile_models)
app.command("retrain", rich_help_panel=DEPLOYMENT)(retrain.retrain)
app.command("shift", rich_help_panel=DEPLOYMENT)(shift.shift)
app.add_typer(agent.app, name="agent", rich_help_panel=MACHINE)
app.add_typer(devices.app, name="devices", rich_help_panel=MACHINE)
app.add_typer(knobs.app, name="knobs", rich_help_panel=MACHINE)
app.add_typer(queue.app, name="queue", rich_help_panel=MACHINE)


@app.command(
    rich_help_panel=TUNING,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
def submit(context: typer.Context) -> None:
    """Queue a study on this machine; takes the arguments of `onefold tune`."""
    arguments = ["--help"] if not context.args or "--help" in context.args else [*context.args, "--queued"]
    command = typer.main.get_command(app).commands["tune"]  # type: ignore[attr-defined]
    with command.make_context("onefold submit", arguments) as inner:
        command.invoke(inner)


@app.command(rich_help_panel=TUNING)
def workloads() -> None:
    """List the workloads that come with Onefold."""
    for name, reference in bundled_workloads().items():
        out.print(f"{name:20} {reference}")


def main() -> None:
    """Run a command."""
    run(app)
