"""A whole model: compiled with the best candidates of its operators, checked, timed."""

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

from onefold.kernels.bench import Bench
from onefold.kernels.graph import imported, optimised
from onefold.kernels.phase_costs import PhaseCosts
from onefold.kernels.schedule_space import Proposal, operators_of
from onefold.kernels.toolchain import schedules, tvm
from onefold.kernels.worker import export
from onefold.vocabulary.errors import ModelError
from onefold.vocabulary.kernels import Operator

# Others on the machine slow a model down by a third, for some tenths of a second at a time: so it takes several looks,
# of which the least counts.
LOOKS, LOOKING_S = 3, 0.6  # at the library of a round, and how long they may take
CLEARLY = 0.7  # of the best latency: what is faster still needs not be compared with it again
CLOSE = 1.25  # times the best latency: what is slower still does not become the best by another look
FINALISTS = 5  # libraries that are timed beside each other at the end
FINAL_LOOKS, FINALLY_S = 5, 10.0
TOLERATED = 1e-3  # of the largest answer: by how much a compiled model may differ
Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class TimedLibrary:
    """A library of the model, and how fast it was."""

    file: Path
    latency_s: float
    error: float  # the largest difference from the right answers, as a share of the largest of them


class ModelCompiler:
    """A model on its way to a library."""

    def __init__(self, name: str, model: Path, inputs: Arrays, answers: Arrays, bench: Bench, level: int) -> None:
        self.name, self.inputs, self.answers, self.bench = name, inputs, answers, bench
        self.graph = imported(model, len(inputs[0]) if inputs and inputs[0].ndim else 1)
        self.loops = optimised(self.graph, bench.target, level)
        self.operators: list[tuple[Operator, Any]] = operators_of(self.loops, bench.target)
        self.best: TimedLibrary | None = None
        self._kept: dict[Path, TimedLibrary] = {}  # the fastest libraries, as they were timed last

    def compiled(self, best: Mapping[str, Proposal], file: Path, loops: Any = None) -> Path:
        """The library with these candidates; operators that have none are compiled as they are."""
        relax = importlib.import_module("tvm.relax")
        target, tuner = self.bench.target.opened(), schedules()
        database = tuner.database.MemoryDatabase()
        for operator, module in self.operators:
            if operator.key in best:
                proposal = best[operator.key]
                workload = database.commit_workload(module)
                record = tuner.database.TuningRecord(
                    proposal.schedule.trace, workload, [1.0], target, proposal.measurable.args_info
                )
                database.commit_tuning_record(record)
        try:
            with target, database, tvm().transform.PassContext(opt_level=3):
                apply = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)
                built = tvm().compile(apply(self.loops if loops is None else loops), target=target)
            export(built, str(file))
        except Exception as error:  # TVM raises many kinds
            told = str(error).strip().splitlines()
            raise ModelError(f"{self.name} cannot be compiled: {told[-1] if told else error}") from error
        return file

    def measured(self, best: Mapping[str, Proposal], folder: Path, ledger: PhaseCosts) -> TimedLibrary:
        """Compiles it, unless a library that was kept has these candidates, and times it beside the best so far, unless
        it is clearly faster than that was."""
        with ledger.phase("whole"):
            file = folder / self._file_name(best)
            if file not in self._kept:
                self.compiled(best, file)
            began = time.monotonic()
            looks = [self.timed(file, ledger)]
            rivals = [] if self.best is None or self.best.file == file else [self.best]
            if rivals and looks[0].latency_s > CLEARLY * rivals[0].latency_s:
                again = self._looks([rivals.pop().file, file], LOOKS, LOOKING_S, ledger)
                looks = again if any(one.file == file for one in again) else looks + again
            elif time.monotonic() - began < LOOKING_S:
                looks += self._looks([file], LOOKS, LOOKING_S, ledger)
        found = least([one for one in looks if one.file == file])
        self.best = least([*looks, *rivals])
        self._keep([*rivals, *looks], self.best)
        return found

    def settled(self, ledger: PhaseCosts) -> TimedLibrary | None:
        """The fastest library, once all that were kept have been timed beside each other."""
        if self.best is None:
            return None
        with ledger.phase("whole"):
            looks = self._looks(list(self._kept), FINAL_LOOKS, FINALLY_S, ledger)
        self.best = least(looks) if looks else self.best
        return self.best

    def _looks(self, files: Sequence[Path], turns: int, within_s: float, ledger: PhaseCosts) -> list[TimedLibrary]:
        """Times libraries in turns, of which none begins after so long. One that fails is out: others are there."""
        began, found = time.monotonic(), []
        failed: set[Path] = set()
        for turn in range(turns):
            if turn and time.monotonic() - began > within_s:
                break
            for file in files:
                try:
                    found.append(self.timed(file, ledger))
                except ModelError:
                    failed.add(file)
        return [one for one in found if one.file not in failed]

    def _file_name(self, best: Mapping[str, Proposal]) -> str:
        """The same for the same candidates."""
        made = [(one.key, best[one.key].key) for one, _ in self.operators if one.key in best]
        digest = hashlib.sha256(json.dumps(made).encode()).hexdigest()[:12]
        return f"{self.name}-{digest}.{'so' if self.bench.target.is_here else 'tar'}"

    def _keep(self, looks: Sequence[TimedLibrary], best: TimedLibrary) -> None:
        """The best and what comes close to it; the others are removed."""
        known = self._kept | {one.file: one for one in sorted(looks, key=lambda one: -one.latency_s)}
        others = sorted((one for one in known.values() if one is not best), key=lambda one: one.latency_s)
        near = [one for one in others if one.latency_s <= CLOSE * best.latency_s][: FINALISTS - 1]
        self._kept = {one.file: one for one in (best, *near)}
        for file in known.keys() - self._kept.keys():
            file.unlink(missing_ok=True)

    def timed(self, file: Path, ledger: PhaseCosts | None = None) -> TimedLibrary:
        """Runs a library, and compares its answers."""
        times, outputs, reply = self.bench.whole(file, self.inputs)
        if ledger is not None:
            ledger.add("whole", reply.joules)
        error = difference(outputs, self.answers)
        if not error <= TOLERATED:
            raise ModelError(
                f"the compiled {self.name} answers otherwise than the model: by {error:.2%} of the largest answer"
            )
        return TimedLibrary(file, median(times), error)


def least(looks: Sequence[TimedLibrary]) -> TimedLibrary:
    """What others take of the machine only ever adds."""
    return min(looks, key=lambda one: one.latency_s)


def difference(outputs: Arrays, answers: Arrays) -> float:
    """The largest difference, as a share of the largest answer."""
    if len(outputs) != len(answers):
        return float("inf")
    worst = 0.0
    for output, answer in zip(outputs, answers):
        if output.shape != answer.shape:
            return float("inf")
        if answer.size:
            largest = max(float(np.abs(answer).max()), 1e-6)
            found = float(np.abs(output.astype(np.float64) - answer).max()) / largest
            worst = max(worst, found if math.isfinite(found) else math.inf)
    return worst
