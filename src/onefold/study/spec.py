"""Everything that decides what a study does, as it is written in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from onefold.device import Device
from onefold.search import Algorithm, Observation
from onefold.serving.options import ServingOptions
from onefold.serving.scenarios import USUAL
from onefold.serving.space import ServingSpace
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Budget, Objective
from onefold.vocabulary.records import Config, from_json, to_json
from onefold.vocabulary.serving import SERVING_METRICS, OptimizeFor
from onefold.vocabulary.space import Space

EngineName = Literal["processes", "inline"]
Way = Literal["off", "in-loop", "after"]
Strategy = Literal["onefold", "hierarchical", "fixed", "as-hyperparameters"]


@dataclass(frozen=True)
class Spec:
    """What a study was asked for, and what was found out about the machine before the first trial."""

    workload: str  # a reference that `workload_reference.load` understands; empty when it lives in a program only
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
    first: tuple[Config, ...] = ()  # configurations to try before any is drawn
    arms: tuple[tuple[int, ...], ...] = ()  # groups of trials of which each sends its best up the ladder
    engine: EngineName = "processes"
    sittings: tuple[int, ...] = ()  # trials of each sitting: the first, and every extension
    parallel: int = 0  # trials side by side; 0 until it is measured
    threads: int = 1  # of each trial
    threads_of_few: tuple[tuple[int, int], ...] = ()  # (n, threads): what at most n trials side by side get instead
    quality: Objective | None = None  # the workload's own objective: what makes one epoch better than another
    devices: tuple[Device, ...] = ()  # where the model is to be served; the first one gives the plain metrics
    host: Device | None = None  # this machine, as it was when the study began
    serve_for: str = OptimizeFor.THROUGHPUT.value  # what serving points are searched for
    serving_search: str = "few"
    serving_space: ServingSpace | None = None  # which points may be tried; without it all that the device allows
    scenarios: tuple[str, ...] = USUAL
    scenario_goal: str = "mean"  # or p99: by what the responses of a scenario are judged
    knobs: KnobOptions = field(default_factory=KnobOptions)
    compress: Way = "off"  # in-loop: the workload's trials are variants; after: the best trials once it has ended
    strategy: Strategy = "onefold"  # all together; others are there to compare with

    @property
    def serving(self) -> ServingOptions:
        """The options of the inference tuner."""
        return ServingOptions(
            self.serve_for, self.serving_search, self.serving_space, self.scenarios, self.scenario_goal
        )

    @property
    def window(self) -> int:
        """How many visits may be decided ahead: twice the workers, so that a slow one seldom holds the others up."""
        return 2 * self.parallel if self.parallel > 1 else 1

    @property
    def serving_metrics(self) -> tuple[str, ...]:
        """The metrics that come from the devices and not from training."""
        if not self.devices:
            return ()
        named = [f"{metric}@{device.name}" for device in self.devices for metric in SERVING_METRICS]
        return (*SERVING_METRICS, *(named if len(self.devices) > 1 else ()))

    @property
    def judge(self) -> Objective:
        """What makes one epoch of a trial better than another: serving costs the same after each."""
        serves = set(self.serving_metrics) & set(self.objective.inputs)
        per_second = self.strategy == "as-hyperparameters"  # which the first epoch would always win
        return self.quality if (serves or per_second) and self.quality is not None else self.objective

    def threads_for(self, side_by_side: int | None) -> int:
        """The threads of a visit of which at most so many are under way together."""
        if side_by_side is None:
            return self.threads
        return next((threads for few, threads in self.threads_of_few if side_by_side <= few), self.threads)

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        written = {"space": self.space.to_json(), "objective": self.objective.to_json(), "budget": to_json(self.budget)}
        written["quality"] = None if self.quality is None else self.quality.to_json()
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
        plain["first"] = tuple(Config(config) for config in plain.get("first", ()))
        plain["arms"] = tuple(tuple(arm) for arm in plain.get("arms", ()))
        if plain.get("quality") is not None:
            plain["quality"] = Objective.from_json(plain["quality"])
        plain["devices"] = tuple(from_json(Device, device) for device in plain.get("devices", ()))
        if plain.get("host") is not None:
            plain["host"] = from_json(Device, plain["host"])
        if plain.get("serving_space") is not None:
            plain["serving_space"] = from_json(ServingSpace, plain["serving_space"])
        plain["scenarios"] = tuple(plain.get("scenarios", ()))
        plain["knobs"] = from_json(KnobOptions, plain.get("knobs", {}))
        plain["learned"] = tuple(from_json(Observation, seen) for seen in plain["learned"])
        plain["threads_of_few"] = tuple((few, threads) for few, threads in plain["threads_of_few"])
        return cls(**plain)
