"""The inference tuner: a model and a device -> what serving it costs, at the points worth knowing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from onefold.device import CAREFUL, RESTED, Effort, Session
from onefold.inference import choosing
from onefold.inference.export import samples_beside
from onefold.inference.points import ServingSpace
from onefold.inference.scaling import more_threads
from onefold.inference.signature import Architecture, architecture
from onefold.serving import Purpose, Served, ServingPoint, Surface, best


@dataclass(frozen=True, slots=True)
class Serving:
    """How the serving points of an architecture are searched."""

    purpose: Purpose = Purpose.THROUGHPUT
    algorithm: str = "few"
    thorough: bool = True  # whether `few` looks between the first points, at graph levels, and twice at the best


class Tuner:
    """Finds the serving points of models on one device, in two steps.

    `prepare` loads a model and may be done while the machine is busy. `measure` is timed and wants a quiet machine.
    """

    def __init__(self, session: Session, space: ServingSpace | None = None, serving: Serving | None = None) -> None:
        self.session = session
        self.serving = serving or Serving()
        asked = space or ServingSpace.of(session.device.cores)
        self.asked = asked
        self.space = replace(asked, threads=tuple(n for n in asked.threads if n <= session.threads) or (1,))
        choosing.algorithm(self.serving.algorithm)  # a wrong name is told now
        self._prepared: dict[Path, Architecture] = {}

    def prepare(self, model: Path) -> Architecture:
        """Loads a model with the samples beside it, if there are any."""
        found = architecture(model)
        samples = samples_beside(model)
        level, execution = self.space.graph_levels[-1], self.space.executions[0]
        points = [ServingPoint(1, threads, level, execution) for threads in self.space.threads]
        self.session.prepare(model, samples if samples.is_file() else None, points)
        self._prepared = {model: found}
        return found

    def measure(
        self,
        model: Path,
        effort: Effort = CAREFUL,
        listener: Callable[[Served], None] = lambda _: None,
        *,
        label: Effort | None = None,
    ) -> Surface:
        """Searches the serving points of a prepared model; `listener` hears of each measurement.

        With `label`, what was found best for any purpose is measured once more, with that effort, and that counts;
        and it is found out what these points cost after a rest.
        """
        built = self._prepared.get(model) or self.prepare(model)
        began = time.monotonic()
        found: dict[ServingPoint, Served] = {}
        for purpose in dict.fromkeys((self.serving.purpose, Purpose.LATENCY)):
            for one in self._search(model, built, purpose, effort, found):
                listener(one)
        for one in self._labelled(model, label, found) if label else ():
            listener(one)
        return Surface(
            built.signature,
            self.session.device.name,
            (*found.values(), *more_threads(list(found.values()), self.asked.threads, self.session.device)),
            size_bytes=model.stat().st_size,
            parameters=built.parameters,
            measured_s=time.monotonic() - began,
            notes=self.session.notes(model),
        )

    def _search(
        self, model: Path, built: Architecture, purpose: Purpose, effort: Effort, found: dict[ServingPoint, Served]
    ) -> Iterator[Served]:
        space = self.space
        first = ServingPoint(1, space.threads[0], space.graph_levels[-1], space.executions[0], space.precisions[0])
        if not found and space.batch_sizes[0] == 1:
            found[first] = self.session.serve(model, first, effort)
            yield found[first]
        if first in found:
            within = [n for n in space.batch_sizes if n == 1 or n * found[first].latency_s <= effort.slowest_s]
            space = replace(space, batch_sizes=tuple(within))
        choose = choosing.algorithm(self.serving.algorithm)
        proposals = choose(space, purpose, branches=built.branches, thorough=self.serving.thorough)
        earlier = set(found)  # measured for another purpose: known. What this search asks for twice is wanted twice.
        try:
            point = next(proposals)
            while True:
                if point in earlier:
                    earlier.remove(point)
                    served = found[point]
                else:
                    served = self.session.serve(model, point, effort)
                    # Of two measurements the quicker one counts: whatever disturbs makes slower.
                    found[point] = min(found.get(point, served), served, key=lambda one: one.latency_s)
                    yield served
                point = proposals.send(served)
        except StopIteration:
            return

    def _labelled(self, model: Path, effort: Effort, found: dict[ServingPoint, Served]) -> Iterator[Served]:
        """Measures the best points; what another point overtakes by that is no longer one of them."""
        done: set[ServingPoint] = set()
        while wanted := {best(found.values(), purpose).point for purpose in Purpose} - done:
            point = min(wanted, key=str)
            found[point] = self.session.serve(model, point, effort)
            done.add(point)
            yield found[point]
        for point in {best(found.values(), purpose).point: None for purpose in (Purpose.LATENCY, Purpose.THROUGHPUT)}:
            rested = self.session.serve(model, point, RESTED)
            found[point] = replace(found[point], after_rest_s=(rested.latency_s, rested.p90_s, rested.p99_s))
