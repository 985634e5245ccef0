"""Where calls run: in this process or in worker processes. Knows nothing about tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from onefold.engine.engine import Call, CallFailed, CallFinished, CallReported, Engine, Event, Setup, Tick
from onefold.engine.inline import InlineEngine
from onefold.engine.processes import HANG_TIMEOUT_S, ProcessEngine
from onefold.engine.single_call import run_call
from onefold.vocabulary.errors import InputError, unknown

__all__ = [
    "Call", "CallFailed", "CallFinished", "CallReported", "Engine", "EngineName", "Event", "InlineEngine",
    "ProcessEngine", "Setup", "Tick", "open_engine", "run_call",
]  # fmt: skip

EngineName = Literal["processes", "inline"]


def open_engine(
    name: str,
    setup: Setup | None = None,
    *,
    slots: int = 1,
    hang_timeout_s: float = HANG_TIMEOUT_S,
    memory_bytes: int | None = None,
    cores: Sequence[int] | None = None,
) -> Engine:
    """Return the engine of that name; `with engine:` starts and closes it.

    Args:
        name: "processes" (worker processes, which protect from hangs and crashes) or "inline" (this process).
        setup: Prepares each worker once.
        slots: How many calls run in parallel; "inline" has one.
        hang_timeout_s: A call that is silent for so long has hung, and fails. "inline" has no such protection.
        memory_bytes: What each worker may allocate on top of what it holds after set-up; None for no limit.
        cores: The cores that calls are pinned to; by default all. "inline" pins nothing.

    Raises:
        InputError: There is no engine of that name.
    """
    if name == "inline":
        return InlineEngine(setup)
    if name == "processes":
        return ProcessEngine(slots, setup, cores=cores, hang_timeout_s=hang_timeout_s, memory_bytes=memory_bytes)
    raise InputError(unknown("engine", name, get_args(EngineName)))
