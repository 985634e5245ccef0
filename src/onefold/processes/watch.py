"""Watch a child from outside: how long it has been silent, and whether another program has suspended it."""

from __future__ import annotations

import time

from onefold.processes.worker import Worker

SUSPENDED_S = 2.0  # a child that is suspended for longer is not just about to be continued, as after Ctrl-Z and fg
GAP_S = 5.0  # between two polls: this process was suspended or busy itself
SUSPENDED = "was suspended by another program (SIGSTOP)"


class Watch:
    """Track the silence of a child between polls: call `poll` at least every few seconds.

    Time in which this process did not poll does not count. After Ctrl-Z, say, both were suspended, and the silence says
    nothing about the child.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._polled_at = self._last_message_at = time.monotonic()
        self._suspended_at: float | None = None

    def record_message(self) -> None:
        """Record that the child has sent a message or was given new work."""
        self._last_message_at = time.monotonic()

    def exclude_pause(self, seconds: float) -> None:
        """Exclude a pause that was imposed on the child."""
        self._last_message_at += seconds
        self._polled_at = time.monotonic()
        self._suspended_at = None

    def poll(self) -> None:
        """Check whether the child is suspended."""
        now = time.monotonic()
        if now - self._polled_at > GAP_S:
            self._last_message_at += now - self._polled_at
        self._polled_at = now
        if not self._worker.is_stopped:
            self._suspended_at = None
        elif self._suspended_at is None:
            self._suspended_at = now

    @property
    def silence_s(self) -> float:
        """Return the seconds since the last message."""
        return time.monotonic() - self._last_message_at

    @property
    def is_suspended(self) -> bool:
        """Return whether the child has been suspended for more than SUSPENDED_S."""
        return self._suspended_at is not None and self._polled_at - self._suspended_at > SUSPENDED_S
