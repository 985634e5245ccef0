"""Doing something now and then while it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread


class Regularly:
    """Calls `action` every `period_s` seconds, from a thread of its own, while anybody is inside `needed()`."""

    def __init__(self, action: Callable[[], object], period_s: float) -> None:
        self._action, self._period_s = action, period_s
        self._lock = Lock()
        self._users = 0
        self._enough = Event()

    @contextmanager
    def needed(self) -> Iterator[None]:
        """Keeps the calls coming for the length of the block; blocks may nest and overlap."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._enough = Event()
                Thread(target=self._repeat, args=(self._enough,), name="onefold-meter", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._enough.set()

    def _repeat(self, enough: Event) -> None:
        while not enough.wait(self._period_s):
            self._action()
