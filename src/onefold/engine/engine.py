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
    """Work for a worker: `function(context, *args, tick=tick)`, a generator.

    What it yields is reported, what it returns is the result, and `tick()` tells that it is alive. `context` is what
    the engine's set-up returned in that worker. `cores` is how many of them it wants; it is pinned to those.
    """

    function: Callable[..., Generator[Any, None, Any]]
    args: tuple[Any, ...] = ()
    cores: int = 1


@dataclass(frozen=True, slots=True)
class Setup:
    """Prepares a worker once: `function(*args)` returns the context of all its calls."""

    function: Callable[..., Any] = dict
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Reported:
    """A call yielded a value."""

    run: int
    value: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """A call returned."""

    run: int
    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A call raised, hung, ran out of memory, or its worker died. `retry` when the call may not be to blame."""

    run: int
    failure: Failure
    retry: bool = False


Event = Reported | Finished | Failed


class Engine(Protocol):
    """Runs calls, each in one of `slots` places.

    A call that fails, however badly, is a Failed event and nothing else: the engine goes on. Every run ends in exactly
    one Finished or Failed, after all of its Reported, except one that was stopped: it ends without a further word.
    Used by one thread. `with engine:` starts and closes it.
    """

    @property
    def slots(self) -> int: ...

    @property
    def free(self) -> int:
        """How many calls could be started now."""

    def start(self, call: Call) -> int:
        """Begins a call in a free slot and returns the number of its run."""

    def wait(self, timeout_s: float) -> list[Event]:
        """What happened since the last wait; blocks until something does or the time is over."""

    def stop(self, run: int) -> None:
        """Ends a run between two reports, or at once when it does not answer."""

    def quiet(self) -> AbstractContextManager[None]:
        """Holds every running call still inside the block, so that something else can be timed."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *exc: object) -> None: ...
