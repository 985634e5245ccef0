"""Compiles a whole model with the best candidates of its operators, checks its outputs and times it end to end."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onefold.kernels.candidate_runner import CandidateRunner
from onefold.kernels.graph import import_onnx, optimize_graph
from onefold.kernels.measurement_worker import export_library
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal, extract_operators
from onefold.kernels.toolchain import meta_schedule, tvm
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import Operator

# Contention slows a model down by a third for some tenths of a second at a time, so it is timed several times and the
# minimum counts.
ROUND_REPEATS, ROUND_LIMIT_S = 3, 0.6  # timing the library of a round, and for how long at most
CLEARLY_FASTER = 0.7  # times the best latency: such a library needs no second comparison
CLOSE = 1.25  # times the best latency: a slower library cannot become the best by timing it again
MAX_FINALISTS = 5  # libraries that are timed in turns at the end
FINAL_REPEATS, FINAL_LIMIT_S = 5, 10.0
MAX_ERROR = 1e-3  # relative to the largest output
Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class TimedLibrary:
    """A library of the model with its latency."""

    file: Path
    latency_s: float
    error: float  # largest difference from the reference outputs, relative to the largest of them


class ModelCompiler:
    """Compiles and times one model, and keeps its fastest libraries.

    Args:
        name: Name of the model, for messages and file names.
        model: The ONNX file.
        inputs: One batch of inputs.
        reference: The model's outputs for these inputs.
        runner: Times the libraries.
        graph_level: Graph optimization level.
    """

    def __init__(
        self, name: str, model: Path, inputs: Arrays, reference: Arrays, runner: CandidateRunner, graph_level: int
    ) -> None:
        self.name, self.inputs, self.reference, self.runner = name, inputs, reference, runner
        self.imported = import_onnx(model, len(inputs[0]) if inputs and inputs[0].ndim else 1)
        self.graph = optimize_graph(self.imported, runner.target, graph_level)
        self.operators: list[tuple[Operator, Any]] = extract_operators(self.graph, runner.target)
        self.best: TimedLibrary | None = None
        self._finalists: dict[Path, TimedLibrary] = {}  # the fastest libraries as last timed

    def compile(self, best: Mapping[str, Proposal], file: Path, graph: Any = None) -> Path:
        """Compile the model into a library with the best proposals by operator key; other operators stay untuned.

        Raises ModelError if TVM cannot compile it.
        """
        relax = importlib.import_module("tvm.relax")
        target, tuner = self.runner.target.tvm_target(), meta_schedule()
        database = tuner.database.MemoryDatabase()
        for operator, module in self.operators:
            if operator.key in best:
                proposal = best[operator.key]
                workload = database.commit_workload(module)
                record = tuner.database.TuningRecord(
                    proposal.schedule.trace, workload, [1.0], target, proposal.measure_candidate.args_info
                )
                database.commit_tuning_record(record)
        try:
            with target, database, tvm().transform.PassContext(opt_level=3):
                apply = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)
                built = tvm().compile(apply(self.graph if graph is None else graph), target=target)
            export_library(built, str(file))
        except Exception as error:  # TVM raises many types
            lines = str(error).strip().splitlines()
            raise ModelError(f"{self.name} cannot be compiled: {lines[-1] if lines else error}") from error
        return file

    def measure(self, best: Mapping[str, Proposal], folder: Path, costs: PhaseCosts) -> TimedLibrary:
        """Compile the model with the best proposals, unless a kept library has them, and time it.

        It is timed in turns with the best library so far, unless it is clearly faster.
        """
        with costs.phase("whole"):
            file = folder / self._file_name(best)
            if file not in self._finalists:
                self.compile(best, file)
            started = time.monotonic()
            timings = [self.time_library(file, costs)]
            rivals = [] if self.best is None or self.best.file == file else [self.best]
            if rivals and timings[0].latency_s > CLEARLY_FASTER * rivals[0].latency_s:
                repeated = self._time_in_turns([rivals.pop().file, file], ROUND_REPEATS, ROUND_LIMIT_S, costs)
                has_file = any(timed.file == file for timed in repeated)
                timings = repeated if has_file else timings + repeated
            elif time.monotonic() - started < ROUND_LIMIT_S:
                timings += self._time_in_turns([file], ROUND_REPEATS, ROUND_LIMIT_S, costs)
        self.best = fastest([*timings, *rivals])
        self._keep_finalists([*rivals, *timings], self.best)
        return fastest([timed for timed in timings if timed.file == file])

    def settle(self, costs: PhaseCosts) -> TimedLibrary | None:
        """Time all kept libraries in turns and return the fastest; None if none was measured."""
        if self.best is None:
            return None
        with costs.phase("whole"):
            timings = self._time_in_turns(list(self._finalists), FINAL_REPEATS, FINAL_LIMIT_S, costs)
        self.best = fastest(timings) if timings else self.best
        return self.best

    def time_library(self, file: Path, costs: PhaseCosts | None = None) -> TimedLibrary:
        """Time a library and compare its outputs with the reference. Raises ModelError if it fails or they differ."""
        latencies, outputs, reply = self.runner.time_model(file, self.inputs)
        if costs is not None:
            costs.add("whole", reply.joules)
        error = relative_error(outputs, self.reference)
        if not error <= MAX_ERROR:
            raise ModelError(
                f"the outputs of the compiled {self.name} differ from the model's by {error:.2%} of the largest output"
            )
        return TimedLibrary(file, median(latencies), error)

    def _time_in_turns(
        self, files: Sequence[Path], repeats: int, limit_s: float, costs: PhaseCosts
    ) -> list[TimedLibrary]:
        """Time libraries in turns, of which none starts after `limit_s`; a library that fails is left out."""
        started, timings = time.monotonic(), []
        failed: set[Path] = set()
        for turn in range(repeats):
            if turn and time.monotonic() - started > limit_s:
                break
            for file in files:
                try:
                    timings.append(self.time_library(file, costs))
                except ModelError:
                    failed.add(file)
        return [timed for timed in timings if timed.file not in failed]

    def _file_name(self, best: Mapping[str, Proposal]) -> str:
        """Return a name that is the same for the same proposals."""
        proposals = [(operator.key, best[operator.key].key) for operator, _ in self.operators if operator.key in best]
        digest = hashlib.sha256(json.dumps(proposals).encode()).hexdigest()[:12]
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
