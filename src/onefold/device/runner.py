"""The far side of a session: `python -m onefold.device.runner FD` serves models until its other side is gone.

It needs onnxruntime and numpy and nothing else, as a small board does. Messages are JSON:

    in    {"do": "confine", "cores": [0], "memory_bytes": null}
          {"do": "open", "model": path, "inputs": path or null, "point": {…}}
          {"do": "time", "point": {…}, "effort": {…}}          of the model opened last
          {"do": "memory", "point": {…}}                       of the same
    out   {"answer": …} or {"error": "…"}
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from onefold import meter
from onefold.device.confinement import confine
from onefold.device.cpu_contention import NEGLIGIBLE, CpuContention
from onefold.device.random_inputs import random_input
from onefold.device.session_options import session_options
from onefold.device.timing_effort import TimingEffort, interval
from onefold.meter.memory import high_water_bytes, put_mark_back
from onefold.processes import JSON, Channel, connect_to_parent
from onefold.vocabulary.records import Measurement, from_json, to_json
from onefold.vocabulary.serving import ServingPoint

ATTEMPTS = 3  # at a measurement that is disturbed
RUNS = 2  # until a session has all the memory that it wants


class Runner:
    """Opens a model once per kind of session, and times its batches."""

    def __init__(self) -> None:
        self._model: Path | None = None
        self._samples: dict[str, np.ndarray[Any, Any]] = {}
        self._sessions: dict[ServingPoint, ort.InferenceSession] = {}
        self._meter = meter.choose()

    def confine(self, cores: list[int], memory_bytes: int | None) -> Any:
        """Keeps this process to what the device has."""
        return to_json(confine(cores, memory_bytes))

    def open(self, model: str, inputs: str | None, point: Any) -> bool:
        """Makes a session ready, so that timing it later begins at once."""
        if Path(model) != self._model:
            self._model, self._sessions = Path(model), {}
        self._samples = dict(np.load(inputs, allow_pickle=False)) if inputs else {}
        self._session(from_json(ServingPoint, point))
        gc.collect()  # now, and not while trials wait for a measurement
        return True

    def time(self, point: Any, effort: Any) -> Any:
        """The seconds of each run at a point, with what they cost the processor."""
        at, limits = from_json(ServingPoint, point), from_json(TimingEffort, effort)
        session = self._session(at)
        feed = self._feed(session, at.batch_size)
        gc.disable()
        try:
            for _ in range(limits.warm_up):
                session.run(None, feed)
            waited, times, cost = self._least_disturbed(session, feed, limits, at)
        finally:
            gc.enable()
        return {"times": times, "cost": to_json(cost), "waited": waited}

    def memory(self, point: Any) -> int | None:
        """The peak memory of this process with nothing but one session in it, made and run."""
        at = from_json(ServingPoint, point)
        self._sessions = {}
        gc.collect()
        _give_back()
        put_mark_back()
        session = self._session(at)
        feed = self._feed(session, at.batch_size)
        for _ in range(RUNS):
            session.run(None, feed)
        return high_water_bytes()

    def _least_disturbed(
        self, session: ort.InferenceSession, feed: dict[str, Any], effort: TimingEffort, point: ServingPoint
    ) -> tuple[float, list[float], Measurement]:
        """The times, taken anew while other programs took too much of the processor: the share, times and cost."""
        attempts: list[tuple[float, list[float], Measurement]] = []
        for _ in range(ATTEMPTS):
            with CpuContention(point.threads) as waiting, self._meter.window() as window:
                times = _times(session, feed, effort)
            # The threads of a parallel execution are more than the cores: they wait for each other.
            share = 0.0 if point.execution == "parallel" else waiting.share
            attempts.append((share, times, window.measurement))
            if share <= NEGLIGIBLE:
                break
        return min(attempts, key=lambda attempt: attempt[0])

    def _session(self, point: ServingPoint) -> ort.InferenceSession:
        key = replace(point, batch_size=1)
        if key not in self._sessions:
            self._sessions[key] = ort.InferenceSession(
                str(self._model), session_options(point), providers=["CPUExecutionProvider"]
            )
        return self._sessions[key]

    def _feed(self, session: ort.InferenceSession, batch_size: int) -> dict[str, np.ndarray[Any, Any]]:
        return {each.name: self._input(each, batch_size) for each in session.get_inputs()}

    def _input(self, wanted: Any, batch_size: int) -> np.ndarray[Any, Any]:
        known = self._samples.get(wanted.name)
        if known is None:
            return random_input(wanted, batch_size)
        return np.ascontiguousarray(np.resize(known, (batch_size, *known.shape[1:])))


def _give_back() -> None:
    """Memory that was freed goes back to the system, where the C library can be told so."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _times(session: ort.InferenceSession, feed: dict[str, Any], effort: TimingEffort) -> list[float]:
    """Runs until the median is certain enough, or the effort is spent."""
    times: list[float] = []
    clock = time.perf_counter
    deadline = clock() + effort.seconds
    check_at = effort.least
    while len(times) < effort.most:
        if effort.rest_s:
            time.sleep(effort.rest_s)
        before = clock()
        session.run(None, feed)
        after = clock()
        times.append(after - before)
        if len(times) >= effort.least:
            if after > deadline:
                break
            if len(times) >= check_at:
                low, middle, high = interval(times)
                if high - low <= 2 * effort.precision * middle:
                    break
                check_at = len(times) + max(1, len(times) // 4)
    return times


def serve(channel: Channel) -> None:
    """Answer one message after the other until the other side is gone."""
    runner = Runner()
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
        except Exception as error:  # noqa: BLE001 - reported to the other side, which knows what was asked
            reply = {"error": str(error).strip() or type(error).__name__}
        channel.send(reply)


def main() -> None:
    """Serve the parent process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    serve(connect_to_parent(JSON))


if __name__ == "__main__":
    main()
