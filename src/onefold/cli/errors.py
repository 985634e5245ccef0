"""Errors of the library in the terms of the command line.

The library names Python arguments (`hang_timeout_s`, `device="host"`); a shell user reads of `--hang-timeout` and
`--device host`. An argument that is an ordinary word (`threads`) is translated in an assignment (`threads=0`) and where
a message begins with it (`threads must be …`). Names in quotes and lists of known names are not arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typer.core import TyperGroup, TyperOption

from onefold.vocabulary.errors import OnefoldError, unknown

ASSIGNMENT = re.compile(r"(?<![\w.-])([a-z_]+)=(\"[^\"\n]*\"|'[^'\n]*'|[\w.+-]*\w)")
LEADING = re.compile(r"[a-z]+(?= (?:must|needs|is)\b)")
UNDERSCORED = re.compile(r"(?<![\w.'\"-])[a-z]+(?:_[a-z]+)+\b")
QUOTES = "'\""
EXPECTED = {  # by words in Typer's own messages
    "valid integer": "a whole number",
    "valid number": "a number",
    "valid float": "a number",
    "valid bool": "true or false",
}
KNOWN_NAMES = re.compile(r"(?<=[;?]) known: ")
UNITS = ("", "_s", "_j", "_bytes")
RENAMED = {"kind": "--budget", "share": "--fork-share", "epochs": "--fork-epochs"}  # options, by Python argument
REPHRASED = {"recipe=None": "--plain"}  # options, by what a Python caller writes instead


def cli_message(error: OnefoldError, command: Any) -> str:
    """Return the error's message with the options of a Typer command, if any, in place of Python arguments."""
    options = {} if command is None else dict(_options(command))
    known_options = set(options.values())
    options = {**{name: option for name, option in RENAMED.items() if option in known_options}, **options}
    message = str(error)
    end = match.start() if (match := KNOWN_NAMES.search(message)) else len(message)
    message, known = message[:end], message[end:]
    message = ASSIGNMENT.sub(lambda match: _assignment(match, options), message)
    message = UNDERSCORED.sub(lambda match: options.get(match[0], match[0]), message)
    if leading := LEADING.match(message):
        message = options.get(leading[0], leading[0]) + message[leading.end() :]
    return message + known


def usage_message(error: Any, arguments: Sequence[str]) -> str:
    """Return an error of Typer about the use of a command as a sentence like the errors of the library.

    `arguments` are those of the command: Typer's error does not say which value it rejects.
    """
    context, parameter = error.ctx, getattr(error, "param", None)
    command = "onefold" if context is None else context.command_path
    kind, message = type(error).__name__, str(error.format_message()).strip().rstrip(".")
    if kind == "NoSuchOption":
        known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]
        return unknown("option", error.option_name, known, of=command)
    if kind == "MissingParameter" and parameter is not None:
        message = f"the command needs {_label(parameter)}"
    elif kind == "BadParameter" and parameter is not None:
        expected = next((phrase for word, phrase in EXPECTED.items() if word in message), None)
        given = _given(arguments, parameter)
        got = "" if given is None else f", got {given!r}"
        message = f"{_label(parameter)} expects {expected}{got}" if expected else message
    message = message.replace(". Did", "; did")
    if message.endswith("?"):
        return f"{message[:1].lower()}{message[1:]}"
    return f"{message[:1].lower()}{message[1:]}; see: {command} --help"


def _label(parameter: Any) -> str:
    """Return the longest spelling of an option, or the name of an argument."""
    if isinstance(parameter, TyperOption):
        return str(max(parameter.opts, key=len))
    return f"an argument {(parameter.metavar or parameter.name).strip('{}[]').lower()}"


def _given(arguments: Sequence[str], parameter: Any) -> str | None:
    """Return the last value that the arguments give an option."""
    last_value = None
    for index, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name in parameter.opts:
            last_value = value if is_joined else next(iter(arguments[index + 1 :]), None)
    return last_value


def _assignment(match: re.Match[str], options: Mapping[str, str]) -> str:
    name, value = match.groups()
    if (option := REPHRASED.get(match[0])) in options.values():
        return str(option)
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
