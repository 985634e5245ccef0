"""Watch a child from outside: how long it has been silent, and whether another program has suspended it."""

from __future__ import annotations

import time

from onefold.processes.worker import Worker

SUSPENDED_S = 2.0  # a child that is suspended for longer is not just about to be continued, as after Ctrl-Z and fg
GAP_S = 5.0  # between two looks: this process was suspended or busy itself
SUSPENDED = "was suspended by another program (SIGSTOP)"


class Watch:
    """The silence of a child, as far as this process has looked: call `look` at least every few seconds.

    Time in which this process did not look does not count. After Ctrl-Z, say, both were suspended, and the silence says
    nothing about the child.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._looked = self._heard = time.monotonic()
        self._suspended: float | None = None

    def hear(self) -> None:
        """Note a message of the child, or that it was given new work."""
        self._heard = time.monotonic()

    def excuse(self, seconds: float) -> None:
        """Do not count silence that was imposed on the child."""
        self._heard += seconds
        self._looked = time.monotonic()
        self._suspended = None

    def look(self) -> None:
        """Look whether the child runs."""
        now = time.monotonic()
        if now - self._looked > GAP_S:
            self._heard += now - self._looked
        self._looked = now
        if not self._worker.is_stopped:
            self._suspended = None
        elif self._suspended is None:
            self._suspended = now

    @property
    def silence_s(self) -> float:
        """Return the seconds since the last message."""
        return time.monotonic() - self._heard

    @property
    def is_suspended(self) -> bool:
        """Return whether the child was found suspended for more than SUSPENDED_S."""
        return self._suspended is not None and self._looked - self._suspended > SUSPENDED_S
