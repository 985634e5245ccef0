"""Run calls in this process, one after the other: for tests, for debugging, and for what cannot be pickled."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from onefold.engine.engine import Call, CallFailed, CallFinished, CallReported, Event, Setup
from onefold.engine.failure_mapping import failure_of
from onefold.engine.process_state import restored_process_state


class InlineEngine:
    """One slot in this process. A call that hangs blocks the caller: only worker processes protect from that."""

    slots = 1

    def __init__(self, setup: Setup | None = None) -> None:
        self._setup = setup or Setup()
        self._context: Any = None
        self._runs = 0
        self._run: Generator[Any, None, Any] | None = None

    @property
    def free_slots(self) -> int:
        return int(self._run is None)

    def start(self, call: Call) -> int:
        self._run = _isolated(call, self._context)
        self._runs += 1
        return self._runs

    def wait(self, timeout_s: float) -> list[Event]:  # noqa: ARG002 - a step takes as long as it takes
        if self._run is None:
            return []
        try:
            return [CallReported(self._runs, next(self._run))]
        except StopIteration as end:
            self._run = None
            return [CallFinished(self._runs, end.value)]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a failing call is a value, also one that raises SystemExit
            self._run = None
            return [CallFailed(self._runs, failure_of(error))]

    def stop(self, run: int) -> None:
        if self._run is not None and run == self._runs:
            self._run.close()
            self._run = None

    def lend(self, run: int, cores: int) -> None:
        """Lend nothing: the only call has all cores of this process."""

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()  # nothing runs between two calls of wait()

    def __enter__(self) -> InlineEngine:
        self._context = self._setup.function(*self._setup.args)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop(self._runs)


def _isolated(call: Call, context: Any) -> Generator[Any, None, Any]:
    """Run a call, and restore what it has changed in this process when it ends or is stopped."""
    with restored_process_state():
        return (yield from call.function(context, *call.args, tick=lambda: None))
