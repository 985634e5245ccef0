"""The worker process of a session: `python -m onefold.device.runner FD` serves models until the connection closes.

Messages are JSON:

    in    {"do": "confine", "cores": [0], "memory_bytes": null}
          {"do": "open", "model": path, "inputs": path or null, "point": {…}, "weights": path or null, "form": …}
          {"do": "time", "model": …, "inputs": …, "point": {…}, "effort": {…}}
          {"do": "memory", "model": …, "inputs": …, "point": {…}}
    out   {"answer": …} or {"error": "…"}, after any number of {"tick": true} that show progress

Requests do not depend on earlier ones, so that a new process can repeat one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onefold import meter
from onefold.agent.dispatch import Ticks, reply_to
from onefold.agent.runner import Cost, Runner
from onefold.arrays.files import read_arrays
from onefold.device.confinement import confine
from onefold.meter.free_memory import free_bytes
from onefold.processes import JSON, Channel, connect_to_parent
from onefold.runtimes.loading import open_model
from onefold.vocabulary.records import to_json


class HostRunner(Runner):
    """Measure models on this machine, or on the part of it that the process is confined to."""

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        super().__init__(tick, _cost_window(meter.choose()), read_arrays, open_model)

    def confine(self, cores: list[int], memory_bytes: int | None) -> Any:
        """Confine this process to the cores and memory of the device."""
        return to_json(confine(cores, memory_bytes))

    def open(self, model: str, inputs: str | None, point: Any, weights: str | None = None, form: Any = None) -> bool:
        if not free_bytes():
            raise MemoryError  # the runtime alone fills the device
        return super().open(model, inputs, point, weights, form)


def _cost_window(chosen: meter.Meter) -> Callable[[], Any]:
    @contextmanager
    def window() -> Iterator[Cost]:
        with chosen.window() as opened:
            yield lambda: to_json(opened.measurement)

    return window


def serve(channel: Channel) -> None:
    """Answer messages until the connection closes."""
    runner = HostRunner(Ticks(channel.send))
    while True:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            return
        channel.send(reply_to(message, runner))


def main() -> None:
    """Serve the parent process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    serve(connect_to_parent(JSON))


if __name__ == "__main__":
    main()
