"""The serving tuner: measure a model at the serving points of a device that are worth knowing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from onefold.device import AFTER_IDLE, PRECISE, Session, TimingEffort
from onefold.runtimes.forms import form_of
from onefold.runtimes.pytorch import PytorchRuntime
from onefold.serving import point_search
from onefold.serving.export import samples_beside
from onefold.serving.point_prediction import extrapolate_threads
from onefold.serving.signature import Architecture, architecture
from onefold.serving.space import ServingSpace
from onefold.vocabulary.errors import ModelError, TooLarge
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import ONNXRUNTIME, LatencySource, OptimizeFor, Served, ServingPoint, Surface, best

RUNTIME_MARGIN, RUNTIME_TURNS = 1.5, 2  # runtimes within this factor of the fastest are measured in turns
LATENCY_POINTS = 3  # measurements reserved for batch size 1 while another goal is searched


@dataclass(frozen=True, slots=True)
class PointSearchOptions:
    """How the serving points of an architecture are searched.

    `thorough` lets `few` descend over batch size, compare graph levels and measure the best points again.
    """

    optimize_for: OptimizeFor = OptimizeFor.THROUGHPUT
    algorithm: str = "few"
    thorough: bool = True


@dataclass(frozen=True, slots=True)
class _Prepared:
    architecture: Architecture
    memory_bytes: int | None  # of a process that serves batch size 1
    notes: tuple[str, ...]


class ServingTuner:
    """Search the serving points of models on one device, in two steps.

    `prepare` loads a model and may run on a busy machine. `measure` is timed and needs a quiet one.
    """

    def __init__(
        self,
        session: Session,
        space: ServingSpace | None = None,
        serving: PointSearchOptions | None = None,
        runtimes: Sequence[str] = (ONNXRUNTIME,),
    ) -> None:
        self.session = session
        self.runtimes = tuple(runtimes)  # the model lies in their forms beside its file
        self.serving = serving or PointSearchOptions()
        full_space = (ServingSpace() if space is None else space).on(session.device.cores)
        self._all_threads = full_space.threads  # those that cannot be measured are predicted
        self.space = replace(full_space, threads=tuple(n for n in full_space.threads if n <= session.threads) or (1,))
        point_search.algorithm(self.serving.algorithm)  # raises for an unknown name
        self._prepared: dict[Path, _Prepared] = {}

    def prepare(self, model: Path) -> Architecture:
        """Load a model with the samples beside it, if there are any, and measure its memory."""
        graph = check_batch_size(model)
        if model.suffix == ".pt":
            self.runtimes = (PytorchRuntime.name,)  # no other one can have it
        samples = samples_beside(model)
        inputs = samples if samples.is_file() else None
        level, execution = self.space.graph_levels[-1], self.space.executions[0]
        first = self.runtimes[0]
        points = [ServingPoint(1, threads, level, execution, runtime=first) for threads in self.space.threads]
        self.session.prepare(model, inputs, points[:1])
        memory_bytes = self.session.memory(model, points[0])
        self.session.prepare(model, inputs, points)
        self._prepared = {model: _Prepared(graph, memory_bytes, _notes(graph, samples=inputs is not None))}
        return graph

    def measure(
        self,
        model: Path,
        effort: TimingEffort = PRECISE,
        on_measured: Callable[[Served], None] = lambda _: None,
        *,
        final: TimingEffort | None = None,
        after_idle: bool = False,
    ) -> Surface:
        """Search the serving points of a model and return all of them, those with too many threads predicted.

        Args:
            model: The ONNX file; prepared now if it was not.
            effort: The timing effort of the search.
            on_measured: Called after each measurement.
            final: Measure the best point for each goal again with this effort, and its memory; that result counts.
            after_idle: Also measure the best points after idle gaps, which open-loop scenarios need.
        """
        if model not in self._prepared:
            self.prepare(model)
        prepared = self._prepared[model]
        start_s = time.monotonic()
        served: dict[ServingPoint, Served] = {}
        notes = list(prepared.notes)
        for runtime in self.runtimes:
            try:
                for measured in self._search_runtime(model, prepared, runtime, effort, served):
                    on_measured(measured)
            except ModelError as error:
                if runtime == self.runtimes[0]:
                    raise
                notes.append(f"{runtime} cannot serve the model: {error}")
        for measured in self._compare_runtimes(model, effort, served):
            on_measured(measured)
        for measured in self._measure_best(model, final, served) if final else ():
            on_measured(measured)
        if after_idle:
            self._measure_after_idle(model, served)
        points = list(served.values())
        predicted = extrapolate_threads(points, self._all_threads, self.session.device)
        return Surface(
            prepared.architecture.signature,
            self.session.device.name,
            (*points, *predicted),
            size_bytes=model.stat().st_size,
            parameters=prepared.architecture.parameters,
            measured_s=time.monotonic() - start_s,
            notes=(*notes, *_unmeasured(predicted, self.session.threads), *self.session.notes(model)),
            measured_on=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _search_runtime(
        self, model: Path, prepared: _Prepared, runtime: str, effort: TimingEffort, served: dict[ServingPoint, Served]
    ) -> Iterator[Served]:
        """Search the points of one runtime for all goals."""
        goals = list(dict.fromkeys((self.serving.optimize_for, OptimizeFor.LATENCY)))
        left = int(point_search.MAX_SHARE * len(self.space)) - LATENCY_POINTS * (len(goals) - 1)
        space = self.space
        if prepared.architecture.batch_size is not None or _is_for_single_samples(model, runtime):
            space = replace(space, batch_sizes=(1,))
        if runtime != ONNXRUNTIME:  # the others have no such knobs
            space = replace(space, graph_levels=space.graph_levels[-1:], executions=space.executions[:1])
        for goal in goals:
            own = {point: known for point, known in served.items() if point.runtime == runtime}
            for measured in self._search(model, prepared, space, runtime, goal, effort, own, left):
                left -= 1
                yield measured
            served |= own
            left += LATENCY_POINTS

    def _compare_runtimes(
        self, model: Path, effort: TimingEffort, known: dict[ServingPoint, Served]
    ) -> Iterator[Served]:
        """Measure the best points of runtimes that are close to each other again, in turns; the fastest time counts."""
        for goal in (OptimizeFor.LATENCY, OptimizeFor.THROUGHPUT) if len(self.runtimes) > 1 else ():
            by_runtime: dict[str, list[Served]] = {}
            for served in known.values():
                by_runtime.setdefault(served.point.runtime, []).append(served)
            finalists = [best(each, goal) for each in by_runtime.values()]
            lowest = min(served.cost(goal) for served in finalists)
            close = [served.point for served in finalists if served.cost(goal) <= lowest * RUNTIME_MARGIN]
            for point in close * RUNTIME_TURNS if len(close) > 1 else ():
                again = replace(self.session.serve(model, point, effort), memory_bytes=known[point].memory_bytes)
                known[point] = min(known[point], again, key=lambda candidate: candidate.latency_s)
                yield known[point]

    def _search(
        self,
        model: Path,
        prepared: _Prepared,
        space: ServingSpace,
        runtime: str,
        optimize_for: OptimizeFor,
        effort: TimingEffort,
        known: dict[ServingPoint, Served],
        max_points: int,
    ) -> Iterator[Served]:
        """Measure the proposed points, add them to `known` and yield each measurement."""
        knobs = space.graph_levels[-1], space.executions[0], space.precisions[0]
        first = ServingPoint(1, space.threads[0], *knobs, runtime=runtime)
        if not known and space.batch_sizes[0] == 1:
            known[first] = self._measure(model, prepared, first, effort)
            yield known[first]
        if first in known:
            short = [n for n in space.batch_sizes if n == 1 or n * known[first].latency_s <= effort.max_batch_s]
            space = replace(space, batch_sizes=tuple(short))
        search = point_search.algorithm(self.serving.algorithm)
        branches, thorough = prepared.architecture.branches, self.serving.thorough
        proposals = search(space, optimize_for, branches=branches, thorough=thorough, max_points=max_points)
        earlier = set(known)  # measured for another goal; points that this search repeats are measured again
        try:
            proposed = next(proposals)
            while True:
                point = replace(proposed, runtime=runtime)
                if point in earlier:
                    earlier.remove(point)
                    served = known[point]
                else:
                    served = self._measure(model, prepared, point, effort)
                    if served.runs:
                        # The faster of two measurements counts: contention only slows down.
                        known[point] = min(known.get(point, served), served, key=lambda candidate: candidate.latency_s)
                        yield served
                proposed = proposals.send(served)
        except StopIteration:
            return

    def _measure(self, model: Path, prepared: _Prepared, point: ServingPoint, effort: TimingEffort) -> Served:
        """Return the cost of a point. A batch that exceeds the device's memory has infinite latency and zero runs."""
        try:
            served = self.session.serve(model, point, effort)
        except TooLarge:
            if point.batch_size == 1:
                raise
            infinite, unknown = math.inf, Energy(None, "unavailable")
            times = (infinite,) * 5
            return Served(point, *times, 0, unknown, None, LatencySource.PREDICTED)
        return replace(served, memory_bytes=prepared.memory_bytes) if point.batch_size == 1 else served

    def _measure_best(self, model: Path, effort: TimingEffort, known: dict[ServingPoint, Served]) -> Iterator[Served]:
        """Measure the best point for each goal again, until no other point becomes the best one."""
        done: set[ServingPoint] = set()
        while remaining := {best(known.values(), goal).point for goal in OptimizeFor} - done:
            point = min(remaining, key=str)
            done.add(point)
            try:
                served = self.session.serve(model, point, effort)
                known[point] = replace(served, memory_bytes=self.session.memory(model, point))
            except TooLarge:
                if point.batch_size == 1:
                    raise
                del known[point]
                continue
            yield known[point]

    def _measure_after_idle(self, model: Path, known: dict[ServingPoint, Served]) -> None:
        for point in {best(known.values(), goal).point for goal in (OptimizeFor.LATENCY, OptimizeFor.THROUGHPUT)}:
            idle = self.session.serve(model, point, AFTER_IDLE)
            known[point] = replace(known[point], after_rest_s=(idle.latency_s, idle.p90_s, idle.p99_s))


def _is_for_single_samples(model: Path, runtime: str) -> bool:
    form = form_of(model, runtime)
    return form is not None and form.batch_size == 1


def check_batch_size(model: Path, name: str = "") -> Architecture:
    """Return the architecture of a model; raise ModelError if it cannot serve single samples."""
    graph = architecture(model)
    if graph.batch_size not in (None, 1):
        raise ModelError(
            f"{name or model} has a fixed batch size of {graph.batch_size}; export it with a dynamic first dimension"
        )
    return graph


def _unmeasured(predicted: Sequence[Served], threads: int) -> Iterator[str]:
    """Return the caveat that some points did not run."""
    if predicted:
        counts = ", ".join(map(str, sorted({served.point.threads for served in predicted})))
        yield (
            f"points on {counts} threads did not run, since {threads} can be measured here: they are predicted, and "
            "recommended only if even the upper end of their interval is better"
        )


def _notes(model: Architecture, *, samples: bool) -> tuple[str, ...]:
    """Return caveats about a model that are known before it is measured."""
    notes = []
    if model.batch_size is not None:
        notes.append("the model has a fixed batch size of 1; export it with a dynamic first dimension to serve batches")
    if model.why_not_onnx:
        notes.append(f"served by PyTorch itself: {model.why_not_onnx}")
    if model.open_dimensions and not samples:
        names = ", ".join(model.open_dimensions)
        notes.append(f"dynamic dimensions are measured at size 1: {names}; put real inputs beside the model, as .npz")
    return tuple(notes)
