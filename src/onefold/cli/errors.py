"""Errors of the library in the terms of the command line.

The library names Python arguments (`hang_timeout_s`, `device="host"`); a shell user reads of `--hang-timeout` and
`--device host`. An argument that is an ordinary word (`threads`) is translated in an assignment (`threads=0`) and where
a message begins with it (`threads must be …`). Names in quotes and lists of known names are not arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from typer.core import TyperGroup, TyperOption

from onefold.vocabulary.errors import OnefoldError

ASSIGNMENT = re.compile(r"(?<![\w.-])([a-z_]+)=(\"[^\"\n]*\"|'[^'\n]*'|[\w.+-]*\w)")
LEADING = re.compile(r"[a-z]+(?= (?:must|needs|is)\b)")
UNDERSCORED = re.compile(r"(?<![\w.'\"-])[a-z]+(?:_[a-z]+)+\b")
QUOTES = "'\""
UNITS = ("", "_s", "_j", "_bytes")


def cli_message(error: OnefoldError, command: Any) -> str:
    """Return the error's message with the options of a Typer command, if any, in place of Python arguments."""
    options = {} if command is None else dict(_options(command))
    message, separator, known = str(error).partition("; known: ")
    message = ASSIGNMENT.sub(lambda match: _assignment(match, options), message)
    message = UNDERSCORED.sub(lambda match: options.get(match[0], match[0]), message)
    if leading := LEADING.match(message):
        message = options.get(leading[0], leading[0]) + message[leading.end() :]
    return message + separator + known


def _assignment(match: re.Match[str], options: Mapping[str, str]) -> str:
    name, value = match.groups()
    if name not in options:
        return match[0]
    if value == "True":
        return options[name]
    return f"{options[name]} {value.strip(value[0]) if value[0] in QUOTES else value}"


def _options(command: Any) -> Iterator[tuple[str, str]]:
    """Yield the possible Python arguments behind each option of a command and of its subcommands."""
    if isinstance(command, TyperGroup):
        for subcommand in command.commands.values():
            yield from _options(subcommand)
    for parameter in command.params:
        for option in parameter.opts if isinstance(parameter, TyperOption) else ():
            if option.startswith("--"):
                name = option.removeprefix("--").replace("-", "_")
                yield from ((name + unit, option) for unit in UNITS)
