"""The seam between a study and where its calls run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from onefold.vocabulary.records import Failure

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Call:
    """Work for a worker: the generator `function(context, *args, tick=tick)`.

    Its yields are reported, its return value is the result, and it calls `tick()` to show that it is alive. `context`
    is what the engine's set-up returned in that worker. The call is pinned to `cores` cores.
    """

    function: Callable[..., Generator[Any, None, Any]]
    args: tuple[Any, ...] = ()
    cores: int = 1


@dataclass(frozen=True, slots=True)
class Setup:
    """Prepare a worker once: `function(*args)` returns the context of all its calls."""

    function: Callable[..., Any] = dict
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CallReported:
    """A call yielded a value."""

    run: int
    value: Any


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call returned."""

    run: int
    value: Any


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call raised, hung, ran out of memory, or lost its worker. `retry` if the call may not be the cause."""

    run: int
    failure: Failure
    retry: bool = False


Event = CallReported | CallFinished | CallFailed


class Engine(Protocol):
    """Run calls, each in one of `slots` slots.

    A call that fails, however badly, is a CallFailed event and nothing else: the engine continues. Every run ends in
    exactly one CallFinished or CallFailed, after all of its CallReported, except a stopped one, which ends silently.
    An engine is used by one thread. `with engine:` starts and closes it.
    """

    @property
    def slots(self) -> int: ...

    @property
    def free_slots(self) -> int:
        """Return how many calls could be started now."""

    def start(self, call: Call) -> int:
        """Start a call in a free slot and return the number of its run."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Return the events since the last wait; block until there is one or the time is over."""

    def stop(self, run: int) -> None:
        """Stop a run between two reports, or kill it if it does not respond."""

    def lend(self, run: int, cores: int) -> None:
        """Lend a run up to `cores` further cores, of those that no call uses; with 0 take all back.

        The run sees them in `onefold.processes.lent_cores` and may ignore them. It leaves those that are taken back at
        its next look, so take them back before you start another call.
        """

    def paused(self) -> AbstractContextManager[None]:
        """Pause every running call inside the block, so that a measurement has the machine for itself."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *exc: object) -> None: ...
