"""The application of the command `onefold`, without its commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from onefold import __version__
from onefold.cli.console import err, out
from onefold.cli.errors import cli_message, usage_message
from onefold.cli.interruption import end_interrupted, interrupt
from onefold.processes import handle_interrupts
from onefold.vocabulary.errors import OnefoldError

UsageError: type[Any] = typer.BadParameter.__bases__[0]  # Typer does not export it


@dataclass(frozen=True)
class MainProgram:
    """The context object of a command that is the main program of its process, and may handle its signals."""

    is_whole_process: bool = False  # the process began with the command, and ends with it


class OnefoldGroup(TyperGroup):
    """Ends a command that is misused, raises OnefoldError or is interrupted with one line and its exit code."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        given = [*args]
        try:
            return super().make_context(info_name, args, *more, **extra)
        except UsageError as error:
            _end_misused(error, given)

    def invoke(self, ctx: Any) -> Any:  # typer keeps its Context type private
        given = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            if isinstance(ctx.obj, MainProgram):
                handle_interrupts(interrupt)  # from here on an interruption is caught
            return super().invoke(ctx)
        except UsageError as error:
            _end_misused(error, given)
        except OnefoldError as error:
            message = cli_message(error, self.commands.get(ctx.invoked_subcommand or ""))
            err.print(Text.assemble(("onefold: ", "bold red"), message), soft_wrap=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            end_interrupted(ctx.invoked_subcommand)


def _end_misused(error: Any, arguments: Sequence[str]) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error  # which prints the help
    err.print(Text.assemble(("onefold: ", "bold red"), usage_message(error, arguments)), soft_wrap=True)
    sys.exit(error.exit_code)


def new_app() -> typer.Typer:
    """Return an application without commands."""
    app = typer.Typer(
        name="onefold",
        cls=OnefoldGroup,
        help="Tune a neural network for the device it will run on.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_show_version)
    return app


def _show_version(version: Annotated[bool, typer.Option("--version", help="Show the version")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


def run(app: typer.Typer, *, is_whole_process: bool = False) -> None:
    """Run the command of this process. SIGTERM and SIGHUP interrupt it like Ctrl-C."""
    app(prog_name="onefold", obj=MainProgram(is_whole_process))
