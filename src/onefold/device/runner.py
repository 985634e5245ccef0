"""The worker process of a session: `python -m onefold.device.runner FD` serves models until the connection closes.

It needs only onnxruntime and numpy, so that it runs on small boards. Messages are JSON:

    in    {"do": "confine", "cores": [0], "memory_bytes": null}
          {"do": "open", "model": path, "inputs": path or null, "point": {…}}
          {"do": "time", "model": …, "inputs": …, "point": {…}, "effort": {…}}
          {"do": "memory", "model": …, "inputs": …, "point": {…}}
    out   {"answer": …} or {"error": "…"}, after any number of {"tick": true} that show progress

Requests do not depend on earlier ones, so that a new process can repeat one.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from onefold import meter
from onefold.arrays.files import read_arrays
from onefold.device.confinement import confine
from onefold.device.cpu_contention import NEGLIGIBLE, CpuContention
from onefold.device.inference_session import open_inference_session
from onefold.device.random_inputs import random_input
from onefold.device.session_options import session_options
from onefold.device.timing_effort import TimingEffort, median_interval
from onefold.meter.free_memory import free_bytes
from onefold.meter.memory import high_water_bytes, reset_high_water
from onefold.processes import JSON, Channel, connect_to_parent
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.records import Measurement, from_json, to_json
from onefold.vocabulary.serving import ServingPoint

MAX_ATTEMPTS = 3  # at a measurement under contention
TICK_EVERY_S = 1.0  # at most: a message between two timed runs is not free
MEMORY_RUNS = 2  # until a session has allocated all its memory

Array = np.ndarray[Any, Any]
Tick = Callable[[], None]


class Runner:
    """Open a model once per combination of session options, and time its batches."""

    def __init__(self, tick: Tick = lambda: None) -> None:
        self._tick = tick
        self._model: Path | None = None
        self._inputs: str | None = None
        self._samples: dict[str, Array] = {}
        self._sessions: dict[ServingPoint, ort.InferenceSession] = {}
        self._meter = meter.choose()

    def confine(self, cores: list[int], memory_bytes: int | None) -> Any:
        """Confine this process to the cores and memory of the device."""
        return to_json(confine(cores, memory_bytes))

    def open(self, model: str, inputs: str | None, point: Any) -> bool:
        """Create the session of a point, so that timing it starts without delay."""
        if not free_bytes():
            raise MemoryError  # the runtime alone fills the device
        self._load(model, inputs, reload=True)
        self._session(from_json(ServingPoint, point))
        gc.collect()  # now rather than during a measurement
        return True

    def _load(self, model: str, inputs: str | None, *, reload: bool = False) -> None:
        """Choose the model and the samples of the next sessions; `reload` reads samples again that are loaded."""
        if Path(model) != self._model:
            self._model, self._sessions = Path(model), {}
            reload = True
        if reload or inputs != self._inputs:
            self._samples = read_arrays(inputs) if inputs else {}
            self._inputs = inputs

    def time(self, model: str, inputs: str | None, point: Any, effort: Any) -> Any:
        """Return the seconds of each run at a point, their total cost, and the share of contention."""
        serving_point, limits = from_json(ServingPoint, point), from_json(TimingEffort, effort)
        self._load(model, inputs)
        session = self._session(serving_point)
        feed = self._feed(session, serving_point.batch_size)
        gc.disable()
        try:
            for _ in range(limits.warm_up_runs):
                session.run(None, feed)
                self._tick()
            contention, times, cost = self._least_contended(session, feed, limits, serving_point)
        finally:
            gc.enable()
        return {"times": times, "cost": to_json(cost), "contention": contention}

    def memory(self, model: str, inputs: str | None, point: Any) -> int | None:
        """Return the peak memory of this process while it creates and runs a single session."""
        self._load(model, inputs)
        serving_point = from_json(ServingPoint, point)
        self._sessions = {}
        gc.collect()
        _trim_heap()
        reset_high_water()
        session = self._session(serving_point)
        feed = self._feed(session, serving_point.batch_size)
        for _ in range(MEMORY_RUNS):
            session.run(None, feed)
            self._tick()
        return high_water_bytes()

    def _least_contended(
        self, session: ort.InferenceSession, feed: dict[str, Any], effort: TimingEffort, point: ServingPoint
    ) -> tuple[float, list[float], Measurement]:
        """Repeat the measurement while there is contention; return the share, times and cost of the best attempt."""
        attempts: list[tuple[float, list[float], Measurement]] = []
        for _ in range(MAX_ATTEMPTS):
            with CpuContention(point.threads) as contention, self._meter.window() as window:
                times = _times(session, feed, effort, self._tick)
            # Parallel execution has more threads than cores, so its threads wait for each other.
            share = 0.0 if point.execution == "parallel" else contention.share
            attempts.append((share, times, window.measurement))
            if share <= NEGLIGIBLE:
                break
        return min(attempts, key=lambda attempt: attempt[0])

    def _session(self, point: ServingPoint) -> ort.InferenceSession:
        if self._model is None:
            raise ModelError("no model is open")
        key = replace(point, batch_size=1)
        if key not in self._sessions:
            self._sessions[key] = open_inference_session(self._model, session_options(point))
        return self._sessions[key]

    def _feed(self, session: ort.InferenceSession, batch_size: int) -> dict[str, Array]:
        return {value.name: self._input(value, batch_size) for value in session.get_inputs()}

    def _input(self, description: Any, batch_size: int) -> Array:
        samples = self._samples.get(description.name)
        if samples is None:
            return random_input(description, batch_size)
        return np.ascontiguousarray(np.resize(samples, (batch_size, *samples.shape[1:])))


def _trim_heap() -> None:
    """Return freed memory to the system, if the C library supports it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _times(session: ort.InferenceSession, feed: dict[str, Any], effort: TimingEffort, tick: Tick) -> list[float]:
    """Time runs until the median is precise enough or the effort is used up."""
    times: list[float] = []
    clock = time.perf_counter
    deadline = clock() + effort.max_seconds
    check_at = effort.min_runs
    while len(times) < effort.max_runs:
        if effort.idle_s:
            time.sleep(effort.idle_s)
        before = clock()
        session.run(None, feed)
        after = clock()
        times.append(after - before)
        tick()
        if len(times) >= effort.min_runs:
            if after > deadline:
                break
            if len(times) >= check_at:
                low_s, median_s, high_s = median_interval(times)
                if high_s - low_s <= 2 * effort.precision * median_s:
                    break
                check_at = len(times) + max(1, len(times) // 4)
    return times


class _Ticks:
    """Report progress to the parent, at most every TICK_EVERY_S seconds."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last > TICK_EVERY_S:
            self._channel.send({"tick": True})
            self._last = time.monotonic()


def serve(channel: Channel) -> None:
    """Answer messages until the connection closes."""
    runner = Runner(_Ticks(channel))
    while True:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            return
        action = message.pop("do")
        try:
            reply = {"answer": getattr(runner, action)(**message)}
        except MemoryError:
            reply = {"error": "out of memory"}
        except Exception as error:  # noqa: BLE001 - reported to the parent, which knows the request
            reply = {"error": str(error).strip() or type(error).__name__}
        channel.send(reply)


def main() -> None:
    """Serve the parent process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    serve(connect_to_parent(JSON))


if __name__ == "__main__":
    main()
