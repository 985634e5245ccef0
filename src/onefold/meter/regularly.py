"""Doing something now and then while it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from time import sleep


class Regularly:
    """Calls `action` every `period_s` seconds, from a thread of its own, while anybody is inside `needed()`."""

    def __init__(self, action: Callable[[], object], period_s: float) -> None:
        self._action, self._period_s = action, period_s
        self._lock = Lock()
        self._users = 0
        self._thread_lives = False

    @contextmanager
    def needed(self) -> Iterator[None]:
        """Keeps the calls coming for the length of the block; blocks may nest and overlap."""
        with self._lock:
            self._users += 1
            if not self._thread_lives:
                self._thread_lives = True
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
                # Only here may the thread end: blocks in quick succession share one instead of starting one each.
                if self._users == 0:
                    self._thread_lives = False
                    return
            self._action()
