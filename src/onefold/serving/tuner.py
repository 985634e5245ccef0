"""The inference tuner: a model and a device -> what serving it costs, at the points worth knowing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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

FOR_LATENCY = 3  # measurements that are kept back for single samples while another purpose is searched for


@dataclass(frozen=True, slots=True)
class PointSearchOptions:
    """How the serving points of an architecture are searched."""

    optimize_for: OptimizeFor = OptimizeFor.THROUGHPUT
    algorithm: str = "few"
    thorough: bool = True  # whether `few` looks between the first points, at graph levels, and twice at the best


@dataclass(frozen=True, slots=True)
class _Prepared:
    architecture: Architecture
    memory_bytes: int | None  # of a process that serves single samples
    notes: tuple[str, ...]


class ServingTuner:
    """Finds the serving points of models on one device, in two steps.

    `prepare` loads a model and may be done while the machine is busy. `measure` is timed and wants a quiet machine.
    """

    def __init__(
        self, session: Session, space: ServingSpace | None = None, serving: PointSearchOptions | None = None
    ) -> None:
        self.session = session
        self.serving = serving or PointSearchOptions()
        asked = (ServingSpace() if space is None else space).on(session.device.cores)
        self.asked = asked
        self.space = replace(asked, threads=tuple(n for n in asked.threads if n <= session.threads) or (1,))
        point_search.algorithm(self.serving.algorithm)  # a wrong name is told now
        self._prepared: dict[Path, _Prepared] = {}

    def prepare(self, model: Path) -> Architecture:
        """Loads a model with the samples beside it, if there are any, and finds out how much memory it takes."""
        found = architecture(model)
        if found.batch_size not in (None, 1):
            raise ModelError(
                f"{model} takes batches of {found.batch_size} only; export it with an open first dimension, or of 1"
            )
        samples = samples_beside(model)
        inputs = samples if samples.is_file() else None
        level, execution = self.space.graph_levels[-1], self.space.executions[0]
        points = [ServingPoint(1, threads, level, execution) for threads in self.space.threads]
        self.session.prepare(model, inputs, points[:1])
        memory_bytes = self.session.memory(model, points[0])
        self.session.prepare(model, inputs, points)
        self._prepared = {model: _Prepared(found, memory_bytes, _notes(found, samples=inputs is not None))}
        return found

    def measure(
        self,
        model: Path,
        effort: TimingEffort = PRECISE,
        listener: Callable[[Served], None] = lambda _: None,
        *,
        label: TimingEffort | None = None,
        rests: bool = False,
    ) -> Surface:
        """Searches the serving points of a prepared model; `listener` hears of each measurement.

        With `label`, what was found best for any purpose is measured once more, with that effort, and that counts;
        also how much memory it takes. With `rests` it is found out what the best points cost after a rest.
        """
        if model not in self._prepared:
            self.prepare(model)
        known = self._prepared[model]
        began = time.monotonic()
        found: dict[ServingPoint, Served] = {}
        purposes = list(dict.fromkeys((self.serving.optimize_for, OptimizeFor.LATENCY)))
        left = int(point_search.SHARE * len(self.space)) - FOR_LATENCY * (len(purposes) - 1)
        for purpose in purposes:
            for one in self._search(model, known, purpose, effort, found, left):
                left -= 1
                listener(one)
            left += FOR_LATENCY
        for one in self._labelled(model, label, found) if label else ():
            listener(one)
        if rests:
            self._rest(model, found)
        return Surface(
            known.architecture.signature,
            self.session.device.name,
            (*found.values(), *extrapolate_threads(list(found.values()), self.asked.threads, self.session.device)),
            size_bytes=model.stat().st_size,
            parameters=known.architecture.parameters,
            measured_s=time.monotonic() - began,
            notes=(*known.notes, *self.session.notes(model)),
        )

    def _search(
        self,
        model: Path,
        known: _Prepared,
        purpose: OptimizeFor,
        effort: TimingEffort,
        found: dict[ServingPoint, Served],
        most: int,
    ) -> Iterator[Served]:
        space = self.space if known.architecture.batch_size is None else replace(self.space, batch_sizes=(1,))
        first = ServingPoint(1, space.threads[0], space.graph_levels[-1], space.executions[0], space.precisions[0])
        if not found and space.batch_sizes[0] == 1:
            found[first] = self._served(model, known, first, effort)
            yield found[first]
        if first in found:
            within = [n for n in space.batch_sizes if n == 1 or n * found[first].latency_s <= effort.max_batch_s]
            space = replace(space, batch_sizes=tuple(within))
        choose = point_search.algorithm(self.serving.algorithm)
        branches, thorough = known.architecture.branches, self.serving.thorough
        proposals = choose(space, purpose, branches=branches, thorough=thorough, most=most)
        earlier = set(found)  # measured for another purpose: known. What this search asks for twice is wanted twice.
        try:
            point = next(proposals)
            while True:
                if point in earlier:
                    earlier.remove(point)
                    served = found[point]
                else:
                    served = self._served(model, known, point, effort)
                    if served.runs:
                        # Of two measurements the quicker one counts: whatever disturbs makes slower.
                        found[point] = min(found.get(point, served), served, key=lambda one: one.latency_s)
                        yield served
                point = proposals.send(served)
        except StopIteration:
            return

    def _served(self, model: Path, known: _Prepared, point: ServingPoint, effort: TimingEffort) -> Served:
        """What a point costs; a batch that does not fit into the device's memory takes for ever, and has no runs."""
        try:
            served = self.session.serve(model, point, effort)
        except TooLarge:
            if point.batch_size == 1:
                raise
            never, nothing = math.inf, Energy(None, "unavailable")
            return Served(point, never, never, never, never, never, 0, nothing, None, LatencySource.PREDICTED)
        return replace(served, memory_bytes=known.memory_bytes) if point.batch_size == 1 else served

    def _labelled(self, model: Path, effort: TimingEffort, found: dict[ServingPoint, Served]) -> Iterator[Served]:
        """Measures the best points; what another point overtakes by that is no longer one of them."""
        done: set[ServingPoint] = set()
        while wanted := {best(found.values(), purpose).point for purpose in OptimizeFor} - done:
            point = min(wanted, key=str)
            done.add(point)
            try:
                served = self.session.serve(model, point, effort)
                found[point] = replace(served, memory_bytes=self.session.memory(model, point))
            except TooLarge:
                if point.batch_size == 1:
                    raise
                del found[point]
                continue
            yield found[point]

    def _rest(self, model: Path, found: dict[ServingPoint, Served]) -> None:
        for point in {best(found.values(), purpose).point for purpose in (OptimizeFor.LATENCY, OptimizeFor.THROUGHPUT)}:
            rested = self.session.serve(model, point, AFTER_IDLE)
            found[point] = replace(found[point], after_rest_s=(rested.latency_s, rested.p90_s, rested.p99_s))


def _notes(found: Architecture, *, samples: bool) -> tuple[str, ...]:
    """What to know of a model before it is measured."""
    said = []
    if found.batch_size is not None:
        said.append("the model takes single samples only: export it with an open first dimension to serve batches")
    if found.open_dimensions and not samples:
        names = ", ".join(found.open_dimensions)
        said.append(f"dimensions that the model leaves open count as 1: {names}; put real inputs beside it, as .npz")
    return tuple(said)
