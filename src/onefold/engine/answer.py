"""One question to a worker, and its answer."""

from __future__ import annotations

import logging
from typing import Any

from onefold.engine.engine import Call, Engine, Failed, Finished

TRIES = 3  # of a call whose worker dies

log = logging.getLogger("onefold")


def answer(engine: Engine, call: Call) -> Any:
    """Runs one call and waits for its answer; a Failure when it failed. Events of other runs are lost meanwhile."""
    while not engine.free:
        engine.wait(1.0)
    run, tries = engine.start(call), 1
    while True:
        for event in engine.wait(1.0):
            if isinstance(event, Finished) and event.run == run:
                return event.value
            if isinstance(event, Failed) and event.run == run:
                if not event.retry or tries == TRIES:
                    log.warning("a call failed: %s", event.failure.reason)
                    return event.failure
                run, tries = engine.start(call), tries + 1
