"""Call a function periodically while it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from time import sleep


class PeriodicCall:
    """Call `action` every `period_s` seconds from a background thread while any `active()` block is open."""

    def __init__(self, action: Callable[[], object], period_s: float) -> None:
        self._action, self._period_s = action, period_s
        self._lock = Lock()
        self._users = 0
        self._has_thread = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Keep the calls going inside the block; blocks may nest and overlap."""
        with self._lock:
            self._users += 1
            if not self._has_thread:
                self._has_thread = True
                Thread(target=self._repeat, name="onefold-meter", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def _repeat(self) -> None:
        while True:
            sleep(self._period_s)
            with self._lock:
                # The thread ends only here, so that blocks in quick succession share one.
                if self._users == 0:
                    self._has_thread = False
                    return
            self._action()
