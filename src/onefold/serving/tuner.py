"""The serving tuner: measure a model at the serving points of a device that are worth knowing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from onefold.device import AFTER_IDLE, PRECISE, Session, TimingEffort
from onefold.serving import point_search
from onefold.serving.export import samples_beside
from onefold.serving.point_prediction import extrapolate_threads
from onefold.serving.signature import Architecture, architecture
from onefold.serving.space import ServingSpace
from onefold.vocabulary.errors import ModelError, TooLarge
from onefold.vocabulary.records import Energy
from onefold.vocabulary.serving import LatencySource, OptimizeFor, Served, ServingPoint, Surface, best

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
        self, session: Session, space: ServingSpace | None = None, serving: PointSearchOptions | None = None
    ) -> None:
        self.session = session
        self.serving = serving or PointSearchOptions()
        full_space = (ServingSpace() if space is None else space).on(session.device.cores)
        self._all_threads = full_space.threads  # those that cannot be measured are predicted
        self.space = replace(full_space, threads=tuple(n for n in full_space.threads if n <= session.threads) or (1,))
        point_search.algorithm(self.serving.algorithm)  # raises for an unknown name
        self._prepared: dict[Path, _Prepared] = {}

    def prepare(self, model: Path) -> Architecture:
        """Load a model with the samples beside it, if there are any, and measure its memory."""
        graph = check_batch_size(model)
        samples = samples_beside(model)
        inputs = samples if samples.is_file() else None
        level, execution = self.space.graph_levels[-1], self.space.executions[0]
        points = [ServingPoint(1, threads, level, execution) for threads in self.space.threads]
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
        goals = list(dict.fromkeys((self.serving.optimize_for, OptimizeFor.LATENCY)))
        left = int(point_search.MAX_SHARE * len(self.space)) - LATENCY_POINTS * (len(goals) - 1)
        for goal in goals:
            for measured in self._search(model, prepared, goal, effort, served, left):
                left -= 1
                on_measured(measured)
            left += LATENCY_POINTS
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
            notes=(*prepared.notes, *_unmeasured(predicted, self.session.threads), *self.session.notes(model)),
            measured_on=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _search(
        self,
        model: Path,
        prepared: _Prepared,
        optimize_for: OptimizeFor,
        effort: TimingEffort,
        known: dict[ServingPoint, Served],
        max_points: int,
    ) -> Iterator[Served]:
        """Measure the proposed points, add them to `known` and yield each measurement."""
        space = self.space if prepared.architecture.batch_size is None else replace(self.space, batch_sizes=(1,))
        first = ServingPoint(1, space.threads[0], space.graph_levels[-1], space.executions[0], space.precisions[0])
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
            point = next(proposals)
            while True:
                if point in earlier:
                    earlier.remove(point)
                    served = known[point]
                else:
                    served = self._measure(model, prepared, point, effort)
                    if served.runs:
                        # The faster of two measurements counts: contention only slows down.
                        known[point] = min(known.get(point, served), served, key=lambda candidate: candidate.latency_s)
                        yield served
                point = proposals.send(served)
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
    if model.open_dimensions and not samples:
        names = ", ".join(model.open_dimensions)
        notes.append(f"dynamic dimensions are measured at size 1: {names}; put real inputs beside the model, as .npz")
    return tuple(notes)
