"""A worker of the process engine: `python -m onefold.engine.worker FD` runs calls until its coordinator ends.

Messages are pickled tuples:

    in    ("setup", bytes, memory limit)   ("run", run, bytes, cores)   ("lend", run, cores)
          ("stop", run)
    out   ("ready",)   ("unfit", error)   ("tick", run)   ("report", run, value)
          ("done", run, value)   ("failed", run, failure)   ("stopped", run)
"""

from __future__ import annotations

import os
import pickle
import queue
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onefold.engine.failure_mapping import failure_of
from onefold.engine.process_state import restored_process_state
from onefold.processes import Channel, begin_run, connect_to_parent, pin_to_cores, record_loan
from onefold.vocabulary.error_text import headline, type_name
from onefold.vocabulary.errors import EngineError, OnefoldError

TICK_EVERY_S = 0.5


def serve(channel: Channel) -> None:
    """Set up, then run one call after the other."""
    inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    stopped: set[int] = set()
    threading.Thread(target=_listen, args=(channel, inbox, stopped), daemon=True).start()
    context: Any = None
    while True:
        kind, *content = inbox.get()
        try:
            if kind == "setup":
                setup, memory_bytes = content
                function, args = pickle.loads(setup)
                context = function(*args)
                if memory_bytes is not None:
                    _limit_memory(memory_bytes)
                channel.send(("ready",))
            elif kind == "run":
                _run(channel, context, stopped, *content)
        except BrokenPipeError:
            return
        except BaseException as error:  # noqa: BLE001 - the coordinator raises it
            channel.send(("unfit", _setup_error(error)))


def _setup_error(error: BaseException) -> OnefoldError:
    """Return the error that the coordinator raises: an error of Onefold unchanged, any other as an EngineError.

    The classes and arguments of a workload's own exceptions may be unknown to the coordinator.
    """
    if type(error).__module__ == OnefoldError.__module__ and all(type(given) is str for given in error.args):
        return error  # type: ignore[return-value]  # all classes of that module are
    return EngineError(f"a worker cannot be set up: {type_name(error)}: {headline(error)}")


def _run(channel: Channel, context: Any, stopped: set[int], run: int, work: bytes, cores: Sequence[int]) -> None:
    pin_to_cores(cores)
    begin_run(run)
    last_tick = time.monotonic()

    def tick() -> None:
        nonlocal last_tick
        if time.monotonic() - last_tick > TICK_EVERY_S:
            last_tick = time.monotonic()
            channel.send(("tick", run))

    try:
        channel.send(_outcome(channel, context, stopped, run, work, tick))
    except BrokenPipeError:
        raise
    except BaseException as error:  # noqa: BLE001 - a failing call is a value, also one that raises SystemExit
        channel.send(("failed", run, failure_of(error)))


def _outcome(
    channel: Channel, context: Any, stopped: set[int], run: int, work: bytes, tick: Callable[[], None]
) -> tuple[Any, ...]:
    """Run a call to its end, reporting each value; return the message of its end."""
    with restored_process_state():
        function, args = pickle.loads(work)
        call = function(context, *args, tick=tick)
        try:
            while run not in stopped:
                channel.send(("report", run, next(call)))
            call.close()
        except StopIteration as end:
            return "done", run, end.value
        return "stopped", run


def _listen(channel: Channel, inbox: queue.SimpleQueue[tuple[Any, ...]], stopped: set[int]) -> None:
    while True:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            os._exit(0)  # the coordinator has ended: exit at once, the last checkpoint is what counts
        if message[0] == "stop":
            stopped.add(message[1])
        elif message[0] == "lend":
            record_loan(*message[1:])
        else:
            inbox.put(message)


def _limit_memory(memory_bytes: int) -> None:
    """Let allocations fail beyond `memory_bytes` on top of what this process holds now."""
    held = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            held = int(line.split()[1]) * 1024
    limit = held + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Serve the parent process."""
    serve(connect_to_parent())


if __name__ == "__main__":
    main()
