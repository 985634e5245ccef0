"""Measure models in this process: load one per serving point in its runtime, and time its batches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from onefold.agent.conditions import read_conditions, throttling
from onefold.agent.cpu_contention import NEGLIGIBLE, CpuContention
from onefold.agent.forms import Argument, Form, form_from_json
from onefold.agent.loaded_model import Array, LoadedModel, run_batch
from onefold.agent.loading import open_model
from onefold.agent.memory import high_water_bytes, reset_high_water, trim_heap
from onefold.agent.random_inputs import random_input
from onefold.agent.requests import Point, effort_from_json, point_from_json
from onefold.agent.timing_effort import TimingEffort, median_interval, quantile

MAX_ATTEMPTS = 3  # at a measurement that is disturbed
HOPELESS = 0.25  # a share of contention above which the CPU time of one thread says more than the time on the clock
MEMORY_RUNS = 2  # until a model has allocated all its memory

Opener = Callable[[Sequence[Path], Point, Optional[Form]], LoadedModel]  # noqa: UP045
Cost = Callable[[], Mapping[str, Any]]  # the cost of a window that has ended, a `Measurement` as JSON


class Runner:
    """Load a model once per combination of settings, and time its batches.

    Args:
        tick: Called after each run.
        window: Opens a window of work whose cost is measured.
        read_inputs: Reads the arrays of an .npz file by name.
        opener: Loads a model in the runtime of a serving point.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        window: Callable[[], AbstractContextManager[Cost]],
        read_inputs: Callable[[str], Mapping[str, Array]],
        opener: Opener = open_model,
    ) -> None:
        self._tick, self._window, self._read_inputs, self._opener = tick, window, read_inputs, opener
        self._files: Sequence[Path] = ()
        self._form: Form | None = None
        self._inputs: str | None = None
        self._samples: Mapping[str, Array] = {}
        self._models: dict[Point, LoadedModel] = {}

    def open(self, model: str, inputs: str | None, point: Any, weights: str | None = None, form: Any = None) -> bool:
        """Load the model of a point, so that timing it starts without delay.

        `model` is an ONNX file, or the first file of a form; `weights` is then the second one, if it has two.
        """
        self._choose(model, weights, form, inputs, reload=True)
        self._model(point_from_json(point))
        gc.collect()  # now rather than during a measurement
        return True

    def time(
        self, model: str, inputs: str | None, point: Any, effort: Any, weights: str | None = None, form: Any = None
    ) -> Any:
        """Return the latency at a point, the cost of all runs together, and what disturbed them."""
        serving_point, limits = point_from_json(point), effort_from_json(effort)
        self._choose(model, weights, form, inputs)
        loaded = self._model(serving_point)
        batch = self._batch(loaded, serving_point.batch_size)
        gc.disable()
        try:
            for _ in range(limits.warm_up_runs):
                run_batch(loaded, batch)
                self._tick()
            return self._least_disturbed(loaded, batch, limits, serving_point)
        finally:
            gc.enable()

    def memory(
        self, model: str, inputs: str | None, point: Any, weights: str | None = None, form: Any = None
    ) -> int | None:
        """Return the peak memory of this process while it loads and runs a single model."""
        self._choose(model, weights, form, inputs)
        serving_point = point_from_json(point)
        self._models = {}
        gc.collect()
        trim_heap()
        reset_high_water()
        loaded = self._model(serving_point)
        batch = self._batch(loaded, serving_point.batch_size)
        for _ in range(MEMORY_RUNS):
            run_batch(loaded, batch)
            self._tick()
        return high_water_bytes()

    def _choose(self, model: str, weights: str | None, form: Any, inputs: str | None, *, reload: bool = False) -> None:
        """Choose the model and the samples of the next runs; `reload` reads samples again that are loaded."""
        files = [Path(file) for file in (model, weights) if file is not None]
        if files != self._files:
            self._files, self._form, self._models = files, None if form is None else form_from_json(form), {}
            reload = True
        if reload or inputs != self._inputs:
            self._samples = self._read_inputs(inputs) if inputs else {}
            self._inputs = inputs

    def _least_disturbed(
        self, loaded: LoadedModel, batch: Sequence[Array], effort: TimingEffort, point: Point
    ) -> dict[str, Any]:
        """Repeat the measurement while it is disturbed, and return the best attempt.

        With one thread, if others took much of the CPU time of every attempt, its times are CPU times.
        """
        attempts: list[dict[str, Any]] = []
        for _ in range(MAX_ATTEMPTS):
            before = read_conditions()
            with CpuContention(point.threads) as contention, self._window() as cost:
                times, cpu_times = _times(loaded, batch, effort, self._tick)
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

    def _model(self, point: Point) -> LoadedModel:
        if not self._files:
            raise ValueError("no model is open")
        key = replace(point, batch_size=1)
        if key not in self._models:
            self._models[key] = self._opener(self._files, point, self._form)
        return self._models[key]

    def _batch(self, loaded: LoadedModel, batch_size: int) -> list[Array]:
        return [self._input(argument, batch_size) for argument in loaded.inputs]

    def _input(self, argument: Argument, batch_size: int) -> Array:
        samples = self._samples.get(argument.name)
        if samples is None:
            return random_input(argument, batch_size)
        return np.ascontiguousarray(np.resize(samples, (batch_size, *samples.shape[1:])))


def _times(
    loaded: LoadedModel, batch: Sequence[Array], effort: TimingEffort, tick: Callable[[], None]
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
        run_batch(loaded, batch)
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
