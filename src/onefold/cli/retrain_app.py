"""The command `onefold retrain` alone: its window begins with the process, and other commands import much more."""

from __future__ import annotations

from onefold.cli import retrain
from onefold.cli.command_group import new_app, run

app = new_app()
app.command("retrain")(retrain.retrain)


def main() -> None:
    """Run the command; its window includes the start of this process."""
    run(app, is_whole_process=True)
