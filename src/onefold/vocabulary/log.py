"""Loggers whose handlers, which belong to the program that uses Onefold, cannot end its work."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import MutableMapping
from typing import Any


class _Log(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            super().log(level, msg, *args, stacklevel=2, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


def log_of(name: str = "onefold") -> logging.LoggerAdapter[logging.Logger]:
    """Return the log of that name; what its handlers and filters raise is ignored."""
    return _Log(logging.getLogger(name))
