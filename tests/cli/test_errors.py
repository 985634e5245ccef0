"""Errors of the library are shown in the terms of the command line."""

from __future__ import annotations

import pytest
import typer

from onefold.cli.app import app
from onefold.cli.errors import cli_message
from onefold.vocabulary.errors import InputError, OnefoldError

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("hang_timeout_s must be above 0, got 0"), "--hang-timeout must be above 0, got 0"),
        (InputError("memory_bytes must be 1 or more, got 0"), "--memory must be 1 or more, got 0"),
        (InputError('add device="host" for latency_s'), "add --device host for latency_s"),
        (InputError("min_epochs exceeds max_epochs"), "--min-epochs exceeds --max-epochs"),
        (InputError("train_loss is not a goal of my_study.hang_timeout_s"), None),
        (InputError("threads must be 1 or more, got 0"), "--threads must be 1 or more, got 0"),
        (InputError("threads=2 is per trial; give parallel=2"), "--threads 2 is per trial; give --parallel 2"),
        (InputError("each trial has threads of its own"), None),
        (InputError("unknown metric 'max_epochs'; known: loss, memory_bytes"), None),
        (InputError("unknown metric 'los'; did you mean 'loss'? known: loss, memory_bytes"), None),
        (OnefoldError("no space left for hang_timeout_s"), "no space left for --hang-timeout"),
    ],
)
def test_arguments_become_options(error: OnefoldError, message: str | None) -> None:
    assert cli_message(error, COMMANDS["tune"]) == (str(error) if message is None else message)


def test_only_options_of_the_command_are_translated() -> None:
    error = InputError("hang_timeout_s must be above 0")
    assert cli_message(error, COMMANDS["list"]) == str(error)
    assert cli_message(error, None) == str(error)


def test_options_of_subcommands_are_translated() -> None:
    assert cli_message(InputError("idle_w is above busy_w"), COMMANDS["devices"]) == "--idle-w is above --busy-w"
