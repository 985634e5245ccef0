"""Measure models with ONNX Runtime in this process: open a session per serving point, and time its batches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from onefold.agent.conditions import read_conditions, throttling
from onefold.agent.cpu_contention import NEGLIGIBLE, CpuContention
from onefold.agent.inference_session import open_inference_session
from onefold.agent.memory import high_water_bytes, reset_high_water, trim_heap
from onefold.agent.random_inputs import random_input
from onefold.agent.requests import Point, effort_from_json, point_from_json
from onefold.agent.session_options import session_options
from onefold.agent.timing_effort import TimingEffort, median_interval, quantile

MAX_ATTEMPTS = 3  # at a measurement that is disturbed
HOPELESS = 0.25  # a share of contention above which the CPU time of one thread says more than the time on the clock
MEMORY_RUNS = 2  # until a session has allocated all its memory

Array = np.ndarray[Any, Any]
Cost = Callable[[], Mapping[str, Any]]  # the cost of a window that has ended, a `Measurement` as JSON


class Runner:
    """Open a model once per combination of session options, and time its batches.

    Args:
        tick: Called after each run.
        window: Opens a window of work whose cost is measured.
        read_inputs: Reads the arrays of an .npz file by name.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        window: Callable[[], AbstractContextManager[Cost]],
        read_inputs: Callable[[str], Mapping[str, Array]],
    ) -> None:
        self._tick, self._window, self._read_inputs = tick, window, read_inputs
        self._model: Path | None = None
        self._inputs: str | None = None
        self._samples: Mapping[str, Array] = {}
        self._sessions: dict[Point, ort.InferenceSession] = {}

    def open(self, model: str, inputs: str | None, point: Any) -> bool:
        """Create the session of a point, so that timing it starts without delay."""
        self._load(model, inputs, reload=True)
        self._session(point_from_json(point))
        gc.collect()  # now rather than during a measurement
        return True

    def time(self, model: str, inputs: str | None, point: Any, effort: Any) -> Any:
        """Return the latency at a point, the cost of all runs together, and what disturbed them."""
        serving_point, limits = point_from_json(point), effort_from_json(effort)
        self._load(model, inputs)
        session = self._session(serving_point)
        feed = self._feed(session, serving_point.batch_size)
        gc.disable()
        try:
            for _ in range(limits.warm_up_runs):
                session.run(None, feed)
                self._tick()
            return self._least_disturbed(session, feed, limits, serving_point)
        finally:
            gc.enable()

    def memory(self, model: str, inputs: str | None, point: Any) -> int | None:
        """Return the peak memory of this process while it creates and runs a single session."""
        self._load(model, inputs)
        serving_point = point_from_json(point)
        self._sessions = {}
        gc.collect()
        trim_heap()
        reset_high_water()
        session = self._session(serving_point)
        feed = self._feed(session, serving_point.batch_size)
        for _ in range(MEMORY_RUNS):
            session.run(None, feed)
            self._tick()
        return high_water_bytes()

    def _load(self, model: str, inputs: str | None, *, reload: bool = False) -> None:
        """Choose the model and the samples of the next sessions; `reload` reads samples again that are loaded."""
        if Path(model) != self._model:
            self._model, self._sessions = Path(model), {}
            reload = True
        if reload or inputs != self._inputs:
            self._samples = self._read_inputs(inputs) if inputs else {}
            self._inputs = inputs

    def _least_disturbed(
        self, session: ort.InferenceSession, feed: dict[str, Any], effort: TimingEffort, point: Point
    ) -> dict[str, Any]:
        """Repeat the measurement while it is disturbed, and return the best attempt.

        With one thread, if others took much of the CPU time of every attempt, its times are CPU times.
        """
        attempts: list[dict[str, Any]] = []
        for _ in range(MAX_ATTEMPTS):
            before = read_conditions()
            with CpuContention(point.threads) as contention, self._window() as cost:
                times, cpu_times = _times(session, feed, effort, self._tick)
            # Parallel execution has more threads than cores, so its threads wait for each other.
            share = 0.0 if point.execution == "parallel" else contention.share
            throttled = throttling(before, read_conditions())
            uses_cpu_time = share > HOPELESS and point.threads == 1 and not effort.idle_s
            attempts.append(
                {
                    **_summary(cpu_times if uses_cpu_time else times),
                    "clock": "cpu" if uses_cpu_time else "wall",
                    "cost": cost(),
                    "contention": share,
                    "throttling": throttled,
                }
            )
            if share <= NEGLIGIBLE and not throttled:
                break
        return min(attempts, key=lambda attempt: (bool(attempt["throttling"]), attempt["contention"]))

    def _session(self, point: Point) -> ort.InferenceSession:
        if self._model is None:
            raise ValueError("no model is open")
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


def _times(
    session: ort.InferenceSession, feed: dict[str, Any], effort: TimingEffort, tick: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Time runs until the median is precise enough or the effort is used up; return also the CPU time of each."""
    times: list[float] = []
    cpu_times: list[float] = []
    clock, cpu_clock = time.perf_counter, time.process_time
    deadline = clock() + effort.max_seconds
    check_at = effort.min_runs
    while len(times) < effort.max_runs:
        if effort.idle_s:
            time.sleep(effort.idle_s)
        cpu_before, before = cpu_clock(), clock()
        session.run(None, feed)
        after = clock()
        cpu_times.append(cpu_clock() - cpu_before)
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
    return times, cpu_times


def _summary(times: list[float]) -> dict[str, Any]:
    low_s, median_s, high_s = median_interval(times)
    ordered = sorted(times)
    return {
        "runs": len(times),
        "latency_s": median_s,
        "p90_s": quantile(ordered, 0.9),
        "p99_s": quantile(ordered, 0.99),
        "low_s": low_s,
        "high_s": high_s,
    }
