"""Everything that decides what a study does, as it is written in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from onefold.objective import Budget, Objective
from onefold.records import from_json, to_json
from onefold.search import Algorithm, Observation
from onefold.space import Space

EngineName = Literal["processes", "inline"]


@dataclass(frozen=True)
class Spec:
    """What a study was asked for, and what was found out about the machine before the first trial."""

    workload: str  # a reference that `onefold.workload.load` understands; empty when it lives in a program only
    space: Space
    objective: Objective
    budget: Budget
    search: Algorithm = "tpe"
    rungs: str = "halving"
    top_k: int = 3
    seed: int = 0
    accelerator: str = "cpu"
    patience_s: float = 600.0
    memory_bytes: int | None = None
    warm_start: str = ""  # the study whose trials it began with
    learned: tuple[Observation, ...] = ()  # what that study had found out by then
    engine: EngineName = "processes"
    sittings: tuple[int, ...] = ()  # trials of each sitting: the first, and every extension
    parallel: int = 0  # trials side by side; 0 until it is measured
    threads: int = 1  # of each trial
    threads_of_few: tuple[tuple[int, int], ...] = ()  # (n, threads): what at most n trials side by side get instead

    @property
    def window(self) -> int:
        """How many visits may be decided ahead: twice the workers, so that a slow one seldom holds the others up."""
        return 2 * self.parallel if self.parallel > 1 else 1

    def threads_for(self, side_by_side: int | None) -> int:
        """The threads of a visit of which at most so many are under way together."""
        if side_by_side is None:
            return self.threads
        return next((threads for few, threads in self.threads_of_few if side_by_side <= few), self.threads)

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        written = {"space": self.space.to_json(), "objective": self.objective.to_json(), "budget": to_json(self.budget)}
        return {name: written.get(name, to_json(value)) for name, value in plain.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """The spec that `to_json` wrote."""
        known = {f.name for f in fields(cls)}
        plain = {name: value for name, value in data.items() if name in known}
        plain["space"] = Space.from_json(plain["space"])
        plain["objective"] = Objective.from_json(plain["objective"])
        plain["budget"] = Budget(**plain["budget"])
        plain["sittings"] = tuple(plain["sittings"])
        plain["learned"] = tuple(from_json(Observation, seen) for seen in plain["learned"])
        plain["threads_of_few"] = tuple((few, threads) for few, threads in plain["threads_of_few"])
        return cls(**plain)
