"""Checks of the arguments of public functions: unknown keywords and wrong types."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from onefold.vocabulary.errors import ArgumentError, unknown

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` raise ArgumentError for a keyword that it does not have, and for an argument of a wrong type.

    An unknown keyword gets the nearest known one as a suggestion. Types are checked as far as the annotations name
    classes; the elements of containers are not checked.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        _check_keywords(function, signature, kwargs)
        hints = _hints(function)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{_name(function)}: {error}") from None
        for name, value in bound.arguments.items():
            classes = _classes(hints.get(name, Any))
            # A str is also a Sequence, and a bool is an int.
            is_other = any(isinstance(value, kind) and kind not in classes for kind in (str, bool))
            if classes and (is_other or not isinstance(value, classes)):
                names = " or ".join(dict.fromkeys("None" if c is types.NoneType else c.__name__ for c in classes))
                raise ArgumentError(f"{name} must be {names}, got {value!r}")
        return function(*args, **kwargs)

    return checked


def suggest_fields(record: type[T]) -> type[T]:
    """Make the constructor of a record raise ArgumentError for a keyword that it does not have."""
    create = record.__init__
    signature = inspect.signature(create)

    @functools.wraps(create)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        _check_keywords(create, signature, kwargs)
        create(self, *args, **kwargs)

    record.__init__ = checked  # type: ignore[method-assign, assignment]
    return record


def _check_keywords(function: Callable[..., Any], signature: inspect.Signature, keywords: Iterable[str]) -> None:
    for name in keywords:
        if name not in signature.parameters:
            known = [parameter for parameter in signature.parameters if parameter not in ("self", "cls")]
            raise ArgumentError(unknown("argument", name, known, of=_name(function)))


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__qualname__.removesuffix('.__init__')}()"


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the arguments, without those that are only imported for type checkers."""
    hints: dict[str, Any] = {}
    for name, annotation in function.__annotations__.items():
        with suppress(NameError):
            argument = types.SimpleNamespace(__annotations__={name: annotation})
            hints |= typing.get_type_hints(argument, function.__globals__)
    return hints


def _classes(hint: Any) -> tuple[type, ...]:
    """Return the classes that an annotation allows; empty if it allows anything, or cannot be checked."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_classes(part) for part in typing.get_args(hint)]
        return tuple(c for part in parts for c in part) if all(parts) else ()
    if typing.get_origin(hint) is typing.Literal:
        return tuple({type(value) for value in typing.get_args(hint)})
    origin = typing.get_origin(hint) or hint
    if origin in (Any, object) or not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return ()
    return (float, int) if origin is float else (origin,)
