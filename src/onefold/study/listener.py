"""Calls to `on_event` that cannot end a study."""

from __future__ import annotations

from onefold.study.events import OnEvent, StudyEvent
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.log import log_of

log = log_of()


class Listener:
    """Calls the user's function with events; what it raises is logged once and does not concern the study.

    Requests to stop pass: KeyboardInterrupt, SystemExit, and BrokenPipeError, when the reader of the output is gone.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._has_failed = False

    def __call__(self, event: StudyEvent) -> None:
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
                    event.kind,
                    headline(error),
                    exc_info=error,
                )
