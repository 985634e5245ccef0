"""Checks of the arguments of public functions: unknown keywords and wrong types."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from onefold.vocabulary.errors import ArgumentError, suggestion

P = ParamSpec("P")
R = TypeVar("R")


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` raise ArgumentError for a keyword that it does not have, and for an argument of a wrong type.

    An unknown keyword gets the nearest known one as a suggestion. Types are checked as far as the annotations name
    classes; the elements of containers are not checked.
    """
    signature = inspect.signature(function)
    known = [name for name in signature.parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise ArgumentError(f"{function.__qualname__} has no argument {name!r}{suggestion(name, known)}")
        hints = _hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            classes = _classes(hints.get(name, Any))
            is_text = isinstance(value, str) and str not in classes  # a str is also a Sequence
            if classes and (is_text or not isinstance(value, classes)):
                names = " or ".join(dict.fromkeys("None" if c is types.NoneType else c.__name__ for c in classes))
                raise ArgumentError(f"{name} must be {names}, got {value!r}")
        return function(*args, **kwargs)

    return checked


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError:  # an annotation that is imported for type checkers only
        return {}


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
