"""One command line option per compression setting, read from the registry of compression methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from onefold.compression.registry import CompressionMethod, parameters
from onefold.vocabulary.records import Value


def with_recipe_options(
    command: Callable[..., None], *, repeatable: bool = False, defaults: Mapping[str, Value] | None = None
) -> Callable[..., None]:
    """Replace the parameter `settings` of a command by one option per compression setting.

    The command receives `settings` by parameter: one value each, by default that of `defaults` or the neutral one; a
    list of values if the options are repeatable.
    """
    signature = inspect.signature(command, eval_str=True)
    options = [
        _option(name, methods, repeatable, (defaults or {}).get(name, methods[0].neutral))
        for name, methods in parameters().items()
    ]
    listed: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        listed += options if parameter.name == "settings" else [parameter]

    @functools.wraps(command)
    def with_settings(**arguments: Any) -> None:
        given = {option.name: arguments.pop(option.name) for option in options}
        if repeatable:
            given = {name: values or [] for name, values in given.items()}
        command(settings=given, **arguments)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in listed]
    with_settings.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
    return with_settings


def _option(name: str, methods: tuple[CompressionMethod, ...], repeatable: bool, default: Value) -> inspect.Parameter:
    kind: Any = float if methods[0].takes_share else str
    texts = [method.summary if method.takes_share else f"{method.name} ({method.summary})" for method in methods]
    text = ", ".join(texts)
    text = text[0].upper() + text[1:] if methods[0].takes_share else text
    help_text = f"{text}; repeatable" if repeatable else text
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, rich_help_panel="Compression")
    annotation = Annotated[list[kind] | None, option] if repeatable else Annotated[kind, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None if repeatable else default, annotation=annotation
    )
