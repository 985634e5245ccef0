"""Suggestions for mistyped keyword arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from onefold.vocabulary.errors import ArgumentError, suggestion

P = ParamSpec("P")
R = TypeVar("R")


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` raise ArgumentError with the nearest known keyword for one that it does not have."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise ArgumentError(f"{function.__qualname__} has no argument {name!r}{suggestion(name, known)}")
        return function(*args, **kwargs)

    return checked
