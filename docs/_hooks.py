"""Hooks of the documentation site: render the command line reference from the commands themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import typer

MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marker of the command line page by one section per command."""
    if MARKER not in markdown:
        return markdown
    from onefold.cli.app import app

    sections: list[str] = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        sections.append(_section(f"onefold {name}", command, level=2))
        for sub_name, sub_command in getattr(command, "commands", {}).items():
            sections.append(_section(f"onefold {name} {sub_name}", sub_command, level=3))
    return markdown.replace(MARKER, "\n".join(sections))


def _section(title: str, command: Any, level: int) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([title, *(_usage(argument) for argument in arguments), "[OPTIONS]"])
    lines = [f"{'#' * level} `{title}`", "", command.help or "", "", "```sh", usage, "```", ""]
    panels: dict[str, list[Any]] = defaultdict(list)
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            panels[getattr(parameter, "rich_help_panel", None) or "Arguments and options"].append(parameter)
    for panel, parameters in panels.items():
        lines += [f"**{panel}**", "", "| name | description | default |", "| --- | --- | --- |"]
        lines += [f"| {_name(p)} | {_cell(getattr(p, 'help', None))} | {_default(p)} |" for p in parameters]
        lines.append("")
    return "\n".join(lines)


def _usage(argument: Any) -> str:
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


def _name(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{name if name.startswith('-') else name.upper()}`" for name in names)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    is_shown = default not in (None, False, "", (), []) and not callable(default)
    return f"`{getattr(default, 'value', default)}`" if is_shown else ""


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
