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
    levels: bool = True  # whether `few` compares graph levels too


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

    def prepare(self, model: Path) -> None:
        """Loads a model with the samples beside it, if there are any."""
        samples = samples_beside(model)
        level, execution = self.space.graph_levels[-1], self.space.executions[0]
        points = [ServingPoint(1, threads, level, execution) for threads in self.space.threads]
        self.session.prepare(model, samples if samples.is_file() else None, points)

    def measure(
        self, model: Path, effort: Effort = CAREFUL, listener: Callable[[Served], None] = lambda _: None
    ) -> Surface:
        """Searches the serving points of a prepared model; `listener` hears of each measurement."""
        began = time.monotonic()
        found: dict[ServingPoint, Served] = {}
        for purpose in dict.fromkeys((self.serving.purpose, Purpose.LATENCY)):
            for one in self._search(model, purpose, effort, found):
                listener(one)
        return Surface(
            signature(model),
            self.session.device.name,
            (*found.values(), *more_threads(list(found.values()), self.asked.threads, self.session.device)),
            size_bytes=model.stat().st_size,
            parameters=parameters_of(model),
            measured_s=time.monotonic() - began,
        )

    def _search(
        self, model: Path, purpose: Purpose, effort: Effort, found: dict[ServingPoint, Served]
    ) -> Iterator[Served]:
        choose = choosing.algorithm(self.serving.algorithm)
        proposals = choose(self.space, purpose, branches=has_branches(model), levels=self.serving.levels)
        earlier = dict(found)  # measured for another purpose: known. What this search asks for twice is wanted twice.
        try:
            point = next(proposals)
            while True:
                if point not in earlier:
                    found[point] = self.session.serve(model, point, effort)
                    yield found[point]
                point = proposals.send(found[point])
        except StopIteration:
            return
