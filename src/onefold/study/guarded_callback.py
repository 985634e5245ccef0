"""The callback `on_event`, guarded so that its errors do not end the study."""

from __future__ import annotations

from onefold.study.events import OnEvent, StudyEvent
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.log import log_of

log = log_of()


class GuardedCallback:
    """Calls the user's function with events; its first exception is logged, and none ends the study.

    Requests to stop are passed on: KeyboardInterrupt, SystemExit, and BrokenPipeError, when the
    reader of the output has exited.
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
