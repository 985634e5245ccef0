"""The inference tuner: a model and a device -> what serving it costs, at the points worth knowing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from onefold.device import CAREFUL, Effort, Session
from onefold.inference import choosing
from onefold.inference.export import samples_beside
from onefold.inference.points import ServingSpace
from onefold.inference.scaling import more_threads
from onefold.inference.signature import has_branches, parameters_of, signature
from onefold.serving import Purpose, Served, ServingPoint, Surface


@dataclass(frozen=True, slots=True)
class Serving:
    """How the serving points of an architecture are searched."""

    purpose: Purpose = Purpose.THROUGHPUT
    algorithm: str = "few"
    thorough: bool = True  # whether `few` looks between the first points, at graph levels, and twice at the best


@dataclass(frozen=True, slots=True)
class Facts:
    """What is read from a model's file before anything is timed."""

    model: Path
    signature: str
    branches: bool
    parameters: int
    notes: tuple[str, ...]


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
        self._facts: Facts | None = None

    def prepare(self, model: Path) -> Facts:
        """Loads a model with the samples beside it, if there are any."""
        facts = self._facts = Facts(
            model, signature(model), has_branches(model), parameters_of(model), self.session.notes(model)
        )
        samples = samples_beside(model)
        level, execution = self.space.graph_levels[-1], self.space.executions[0]
        points = [ServingPoint(1, threads, level, execution) for threads in self.space.threads]
        self.session.prepare(model, samples if samples.is_file() else None, points)
        return facts

    def measure(
        self, model: Path, effort: Effort = CAREFUL, listener: Callable[[Served], None] = lambda _: None
    ) -> Surface:
        """Searches the serving points of a prepared model; `listener` hears of each measurement."""
        facts = self._facts if self._facts is not None and self._facts.model == model else self.prepare(model)
        began = time.monotonic()
        found: dict[ServingPoint, Served] = {}
        for purpose in dict.fromkeys((self.serving.purpose, Purpose.LATENCY)):
            for one in self._search(facts, purpose, effort, found):
                listener(one)
        return Surface(
            facts.signature,
            self.session.device.name,
            (*found.values(), *more_threads(list(found.values()), self.asked.threads, self.session.device)),
            size_bytes=model.stat().st_size,
            parameters=facts.parameters,
            measured_s=time.monotonic() - began,
            notes=facts.notes,
        )

    def _search(
        self, facts: Facts, purpose: Purpose, effort: Effort, found: dict[ServingPoint, Served]
    ) -> Iterator[Served]:
        model, space = facts.model, self.space
        first = ServingPoint(1, space.threads[0], space.graph_levels[-1], space.executions[0], space.precisions[0])
        if not found and space.batch_sizes[0] == 1:
            found[first] = self.session.serve(model, first, effort)
            yield found[first]
        if first in found:
            within = [n for n in space.batch_sizes if n == 1 or n * found[first].latency_s <= effort.slowest_s]
            space = replace(space, batch_sizes=tuple(within))
        choose = choosing.algorithm(self.serving.algorithm)
        proposals = choose(space, purpose, branches=facts.branches, thorough=self.serving.thorough)
        earlier = set(found)  # measured for another purpose: known. What this search asks for twice is wanted twice.
        try:
            point = next(proposals)
            while True:
                if point in earlier:
                    earlier.remove(point)
                else:
                    found[point] = self.session.serve(model, point, effort)
                    yield found[point]
                point = proposals.send(found[point])
        except StopIteration:
            return
