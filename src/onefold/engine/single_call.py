"""Run one call and wait for its result."""

from __future__ import annotations

from typing import Any

from onefold.engine.engine import Call, CallFailed, CallFinished, Engine
from onefold.vocabulary.log import log_of

MAX_ATTEMPTS = 3  # of a call whose worker dies

log = log_of()


def run_call(engine: Engine, call: Call) -> Any:
    """Run a call and return its result, or the Failure if it failed. Events of other runs are dropped meanwhile."""
    while not engine.free_slots:
        engine.wait(1.0)
    run, attempts = engine.start(call), 1
    while True:
        for event in engine.wait(1.0):
            if isinstance(event, CallFinished) and event.run == run:
                return event.value
            if isinstance(event, CallFailed) and event.run == run:
                if not event.retry or attempts == MAX_ATTEMPTS:
                    log.warning("a call failed: %s", event.failure.reason)
                    return event.failure
                run, attempts = engine.start(call), attempts + 1
