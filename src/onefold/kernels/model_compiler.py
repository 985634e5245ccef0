"""Compiles a whole model with the best candidates of its operators, checks its outputs and times it end to end."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.compiled_model import CompiledModel
from onefold.kernels.kernel_library import TVM, LibraryManifest
from onefold.kernels.partition import Partition
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal
from onefold.vocabulary.errors import ModelError

# Contention slows a model down by a third for some tenths of a second at a time, so it is timed several times and the
# minimum counts.
ROUND_REPEATS, ROUND_LIMIT_S = 3, 0.6  # timing the library of a round, and for how long at most
CLEARLY_FASTER = 0.7  # times the best latency: such a library needs no second comparison
CLOSE = 1.25  # times the best latency: a slower library cannot become the best by timing it again
MAX_FINALISTS = 5  # libraries that are timed in turns at the end
FINAL_REPEATS, FINAL_LIMIT_S = 5, 10.0
MAX_ERROR = 1e-3  # relative to the largest output
NEVER: Callable[[], bool] = lambda: False  # noqa: E731
Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class TimedLibrary:
    """A library of the model with its latency."""

    file: Path
    latency_s: float
    error: float  # largest difference from the reference outputs, relative to the largest of them
    latencies_s: tuple[float, ...] = ()  # in the last comparison of all kept libraries

    def meets(self, goal_s: float) -> bool:
        """Return whether it is fast enough in most timings: a single one may be an outlier."""
        return median(self.latencies_s or (self.latency_s,)) <= goal_s


class ModelCompiler:
    """Compiles and times one model, and keeps its fastest libraries.

    Args:
        name: Name of the model, for messages and file names.
        model: The ONNX file.
        inputs: One batch of inputs.
        reference: The model's outputs for these inputs.
        runner: Times the libraries.
        graph_level: Graph optimization level.
        parts: How the model is split if TVM compiles only a part of it. The whole model is timed.
        costs: What importing the model costs is added to them.

    Raises:
        ModelError: TVM cannot import the model, or fails at this graph level; the message is the reason.
    """

    def __init__(
        self,
        name: str,
        model: Path,
        inputs: Arrays,
        reference: Arrays,
        runner: CandidateRunner,
        graph_level: int,
        parts: Partition | None = None,
        costs: PhaseCosts | None = None,
    ) -> None:
        self.name, self.inputs, self.reference, self.runner = name, inputs, reference, runner
        self.model, self.level, self.parts = model, graph_level, parts
        self.batch_size = len(inputs[0]) if inputs and inputs[0].ndim else 1
        self._compiled = model if parts is None else parts.compiled
        self.operators = runner.list_operators(self._compiled, self.batch_size, graph_level, costs)
        self.best: TimedLibrary | None = None
        self._finalists: dict[Path, TimedLibrary] = {}  # the fastest libraries as last timed

    def compile(self, best: Mapping[str, Proposal], file: Path, costs: PhaseCosts | None = None) -> Path:
        """Compile the model into a library with the best proposals by operator key; other operators stay untuned.

        Raises ModelError with the reason if TVM cannot compile it.
        """
        traces = {operator.key: best[operator.key].trace for operator, _ in self.operators if operator.key in best}
        self.runner.compile_model(self._compiled, self.batch_size, self.level, traces, file, costs)
        return file

    def at_level(self, graph_level: int, costs: PhaseCosts) -> ModelCompiler:
        """Return a compiler of the same model at another graph level. Raises ModelError if TVM fails."""
        arguments = (self.name, self.model, self.inputs, self.reference, self.runner, graph_level, self.parts)
        return ModelCompiler(*arguments, costs)

    def measure(self, best: Mapping[str, Proposal], folder: Path, costs: PhaseCosts) -> TimedLibrary:
        """Compile the model with the best proposals, unless a kept library has them, and time it.

        It is timed in turns with the best library so far, unless it is clearly faster.
        """
        file = folder / self.file_name(best)
        if not file.is_file():
            self.compile(best, file, costs)
        started = time.monotonic()
        timings = [self.time_library(file, costs)]
        rivals = [] if self.best is None or self.best.file == file else [self.best]
        if rivals and timings[0].latency_s > CLEARLY_FASTER * rivals[0].latency_s:
            repeated = self._time_in_turns([rivals.pop().file, file], ROUND_REPEATS, ROUND_LIMIT_S, costs, NEVER)
            has_file = any(timed.file == file for timed in repeated)
            timings = repeated if has_file else timings + repeated
        elif time.monotonic() - started < ROUND_LIMIT_S:
            timings += self._time_in_turns([file], ROUND_REPEATS, ROUND_LIMIT_S, costs, NEVER)
        self.best = fastest([*timings, *rivals])
        self._keep_finalists([*rivals, *timings], self.best)
        return fastest([timed for timed in timings if timed.file == file])

    def settle(self, costs: PhaseCosts, is_exhausted: Callable[[], bool] = NEVER) -> TimedLibrary | None:
        """Time all kept libraries in turns and return the fastest; None if none was measured.

        No library is timed any more once the budget is exhausted.
        """
        if self.best is None:
            return None
        timings = self._time_in_turns(list(self._finalists), FINAL_REPEATS, FINAL_LIMIT_S, costs, is_exhausted)
        if timings:
            best = fastest(timings)
            latencies_s = tuple(timed.latency_s for timed in timings if timed.file == best.file)
            self.best = replace(best, latencies_s=latencies_s)
        return self.best

    def time_library(self, file: Path, costs: PhaseCosts | None = None) -> TimedLibrary:
        """Time a library through the call that serves it, and compare its outputs with the reference.

        Raises ModelError if it fails or they differ.
        """
        with nullcontext() if costs is None else costs.phase("whole"):
            if self.runner.remote is None:
                opener = partial(CompiledModel, *self._serving_arguments(file))
                timing = self.runner.time_served(opener, self.inputs)
            else:
                timing = self.runner.time_remote_model(file, self.inputs)
        if costs is not None:
            costs.add("whole", timing.joules)
        error = relative_error(timing.outputs, self.reference)
        if not error <= MAX_ERROR:
            raise ModelError(
                f"the outputs of the compiled {self.name} differ from the model's by {error:.2%} of the largest output"
            )
        return TimedLibrary(file, median(timing.latencies), error)

    def _serving_arguments(self, file: Path) -> tuple[Any, ...]:
        """Return the arguments of the `CompiledModel` that serves a library."""
        target, parts = self.runner.target, self.parts
        types = {f"input {at}": str(array.dtype) for at, array in enumerate(self.inputs)}
        tensors = None if parts is None else parts.tensors
        manifest = LibraryManifest("", target.name, target.cores, self.batch_size, types, (), TVM, part=tensors)
        return (file, manifest) if parts is None else (file, manifest, None, parts.before, parts.after)

    def _time_in_turns(
        self,
        files: Sequence[Path],
        repeats: int,
        limit_s: float,
        costs: PhaseCosts,
        is_exhausted: Callable[[], bool],
    ) -> list[TimedLibrary]:
        """Time libraries in turns, of which none starts after `limit_s`; a library that fails is left out."""
        started, timings = time.monotonic(), []
        failed: set[Path] = set()
        for turn in range(repeats):
            if turn and time.monotonic() - started > limit_s:
                break
            for file in files:
                if is_exhausted():
                    break
                try:
                    timings.append(self.time_library(file, costs))
                except ModelError:
                    failed.add(file)
        return [timed for timed in timings if timed.file not in failed]

    def file_name(self, best: Mapping[str, Proposal]) -> str:
        """Return a name that is the same for the same graph level and proposals."""
        proposals = [(operator.key, best[operator.key].key) for operator, _ in self.operators if operator.key in best]
        digest = hashlib.sha256(json.dumps([self.level, proposals]).encode()).hexdigest()[:12]
        return f"{self.name}-{digest}{self.runner.target.library_suffix}"

    def _keep_finalists(self, timings: Sequence[TimedLibrary], best: TimedLibrary) -> None:
        """Keep the best library and those close to it; delete the others."""
        known = self._finalists | {
            timing.file: timing for timing in sorted(timings, key=lambda timing: -timing.latency_s)
        }
        others = sorted(
            (timing for timing in known.values() if timing is not best),
            key=lambda timing: timing.latency_s,
        )
        close = [other for other in others if other.latency_s <= CLOSE * best.latency_s][: MAX_FINALISTS - 1]
        self._finalists = {timing.file: timing for timing in (best, *close)}
        for file in known.keys() - self._finalists.keys():
            file.unlink(missing_ok=True)


def fastest(timings: Sequence[TimedLibrary]) -> TimedLibrary:
    """Return the timing with the lowest latency: contention only ever increases it."""
    return min(timings, key=lambda timed: timed.latency_s)


def relative_error(outputs: Arrays, reference: Arrays) -> float:
    """Return the largest difference relative to the largest reference value; infinite if shapes differ."""
    if len(outputs) != len(reference):
        return float("inf")
    worst = 0.0
    for output, expected in zip(outputs, reference):
        if output.shape != expected.shape:
            return float("inf")
        if expected.size:
            largest = max(float(np.abs(expected).max()), 1e-6)
            error = float(np.abs(output.astype(np.float64) - expected).max()) / largest
            worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst
