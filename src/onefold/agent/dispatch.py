"""How a process that measures answers requests, whatever brings them: a reply for each, and ticks meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

TICK_EVERY_S = 1.0  # at most: a message between two timed runs is not free
ERROR_CHARACTERS = 4000


class Ticks:
    """Sends signs of progress, at most every TICK_EVERY_S seconds."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send, self._last = send, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last > TICK_EVERY_S:
            self._send({"tick": True})
            self._last = time.monotonic()


def reply_to(message: Mapping[str, Any], runner: object) -> dict[str, Any]:
    """Call the method of the runner that a message names with the rest of it; return the answer or the error."""
    action, arguments = message["do"], {name: value for name, value in message.items() if name != "do"}
    try:
        return {"answer": getattr(runner, action)(**arguments)}
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # noqa: BLE001 - reported to whoever asked
        return {"error": (str(error).strip() or type(error).__name__)[:ERROR_CHARACTERS]}
