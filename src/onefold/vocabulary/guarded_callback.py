"""Calls to `on_event` that cannot end the work that they report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from onefold.vocabulary.error_text import headline
from onefold.vocabulary.log import log_of

log = log_of()
Event = TypeVar("Event")


class GuardedCallback(Generic[Event]):
    """Calls the user's function with events, if there is one; the first error that it raises is logged.

    Requests to stop pass: KeyboardInterrupt, SystemExit, and BrokenPipeError, when the reader of the output is gone.
    """

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self._on_event = on_event
        self._has_failed = False

    def __call__(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except BrokenPipeError:
            raise
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                log.warning(
                    "on_event raised %s at %r and is called on; further errors are not logged: %s",
                    type(error).__name__,
                    event if isinstance(event, str) else getattr(event, "kind", type(event).__name__),
                    headline(error),
                    exc_info=error,
                )
