"""The specification of a study: everything that decides what it does, as stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from onefold.compression.selection import SelectionOptions
from onefold.device import Device
from onefold.engine import EngineName
from onefold.search import Algorithm, Observation, ResultsBy
from onefold.serving.load_metrics import load_metric_names
from onefold.serving.options import ServingOptions
from onefold.study.options import CompressMode
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.error_text import headline
from onefold.vocabulary.errors import ObjectiveError, OnefoldError, StoreError
from onefold.vocabulary.forks import ENCODED_BYTES, ForkOptions
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ratios import SERVED_SAMPLES
from onefold.vocabulary.records import Config, from_json, to_json
from onefold.vocabulary.serving import SERVING_METRICS
from onefold.vocabulary.space import Space

TRAINING_COSTS = ("train_time_s", "energy_j")  # metrics that grow with every epoch


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How trials share the machine; `parallel` is 0 until it is measured."""

    engine: EngineName = "processes"
    accelerator: str = "cpu"
    parallel: int = 0
    threads: int = 1  # of each trial
    threads_of_few: tuple[tuple[int, int], ...] = ()  # (n, threads): threads of each if at most n trials are left
    memory_bytes: int | None = None
    hang_timeout_s: float = 600.0

    @property
    def cores(self) -> int:
        """Return how many cores all trials use together."""
        return max(self.parallel * self.threads, *(few * threads for few, threads in self.threads_of_few), 1)

    def threads_for(self, side_by_side: int | None) -> int:
        """Return the threads of a trial of which at most `side_by_side` run in parallel."""
        if side_by_side is None:
            return self.threads
        return next((threads for few, threads in self.threads_of_few if side_by_side <= few), self.threads)


@dataclass(frozen=True)
class Spec:
    """The settings of a study, and what was measured of the machine before its first trial."""

    workload: str  # a workload reference; empty for a workload or function that only a running program has
    space: Space
    objective: Objective
    budget: Budget
    search: Algorithm = "tpe"
    rungs: str = "halving"
    top_k: int = 3
    results_by: ResultsBy = "number"  # as in studies that were stored without it
    seed: int = 0
    warm_start: str = ""  # the study whose results the search starts from
    learned: tuple[Observation, ...] = ()  # those results
    first: tuple[Config, ...] = ()  # configurations to try before any is proposed
    arms: tuple[tuple[int, ...], ...] = ()  # groups of trials; the best of each are promoted
    pairs: tuple[tuple[tuple[int, int], ...], ...] = ()  # by arm: trials promoted with trials of the first arm
    trial_batches: tuple[int, ...] = ()  # trials of the first run and of every extension
    workload_objective: Objective | None = None  # the workload's own; None for a function
    devices: tuple[Device, ...] = ()  # where the model will be served; unqualified metrics are of the first
    host: Device | None = None  # this machine when the study began
    serving: ServingOptions = field(default_factory=ServingOptions)
    parallelism: Parallelism = field(default_factory=Parallelism)
    knobs: KnobOptions = field(default_factory=KnobOptions)
    lends_cores: bool = False  # cores without a rung to rungs that run; False as in studies that were stored without it
    compress: CompressMode = "off"  # in-loop: fork trials into variants; after: compress the best trials
    forks: ForkOptions = field(default_factory=ForkOptions)  # of trials in the loop
    selection: SelectionOptions = field(default_factory=SelectionOptions)  # of a variant after the study

    @property
    def window(self) -> int:
        """Return how far decisions may be ahead of results: twice the workers, so that a slow one seldom blocks."""
        parallel = self.parallelism.parallel
        return 2 * parallel if parallel > 1 else 1

    @property
    def serving_metrics(self) -> tuple[str, ...]:
        """Return the metrics that are measured on devices rather than reported by training."""
        if not self.devices:
            return ()
        of_device = (*SERVING_METRICS, *load_metric_names(self.serving.scenarios))
        qualified = [f"{metric}@{device.name}" for device in self.devices for metric in of_device]
        return (*of_device, *(qualified if len(self.devices) > 1 else ()), SERVED_SAMPLES)

    @property
    def measured_metrics(self) -> tuple[str, ...]:
        """Return the metrics that are measured on devices or on the packed file rather than reported by training."""
        return (*self.serving_metrics, *([ENCODED_BYTES] if self.compress == "in-loop" else []))

    @property
    def epoch_objective(self) -> Objective:
        """Return the objective that ranks the epochs of one trial.

        Serving and size are the same after every epoch, and training costs favor the first one, so an objective over
        costs gives way to the workload's own.
        """
        costs = set(self.measured_metrics) & set(self.objective.inputs)
        if len(self.objective.goals) == 1:
            costs |= set(TRAINING_COSTS) & set(self.objective.inputs)
        return self.workload_objective if costs and self.workload_objective is not None else self.objective

    def check_metrics(self, reported: Iterable[str]) -> None:
        """Raise ObjectiveError if a metric that the objective or its guard needs is not among those reported.

        The guard may be on the workload's own metric, as it is by default, though that is not reported.
        """
        names = set(reported)
        if ENCODED_BYTES in {*self.objective.inputs, *self.objective.guard_inputs}.difference(names):
            raise ObjectiveError(
                f'the metric {ENCODED_BYTES!r} is measured by compression in the loop; add compress="in-loop"'
            )
        self.objective.check(names)
        own = self.workload_objective.inputs if self.workload_objective is not None else ()
        self.objective.check_guard({*names, *own})

    def to_json(self) -> dict[str, Any]:
        """Return the specification as plain JSON values."""
        special = {"space": self.space.to_json(), "objective": self.objective.to_json()}
        if self.workload_objective is not None:
            special["workload_objective"] = self.workload_objective.to_json()
        return {f.name: special.get(f.name, to_json(getattr(self, f.name))) for f in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Return the specification that `to_json` wrote; raise StoreError for one that this version cannot read."""
        try:
            return cls._from_json(data)
        except (OnefoldError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise StoreError(
                "the specification of the study is stored in a form that this version of Onefold cannot read "
                f"({type(error).__name__}: {headline(error)}); upgrade onefold, or delete the study"
            ) from error

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Spec:
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        values["space"] = Space.from_json(values["space"])
        values["objective"] = Objective.from_json(values["objective"])
        values["budget"] = Budget(**values["budget"])
        if values.get("workload_objective") is not None:
            values["workload_objective"] = Objective.from_json(values["workload_objective"])
        if values.get("host") is not None:
            values["host"] = from_json(Device, values["host"])
        values["learned"] = tuple(from_json(Observation, seen) for seen in values.get("learned", ()))
        values["first"] = tuple(Config(config) for config in values.get("first", ()))
        values["arms"] = tuple(tuple(arm) for arm in values.get("arms", ()))
        values["pairs"] = tuple(tuple((one, other) for one, other in group) for group in values.get("pairs", ()))
        values["trial_batches"] = tuple(values.get("trial_batches", ()))
        values["devices"] = tuple(from_json(Device, device) for device in values.get("devices", ()))
        values["serving"] = from_json(ServingOptions, values.get("serving", {}))
        parallelism = dict(values.get("parallelism", {}))
        parallelism["threads_of_few"] = tuple((few, n) for few, n in parallelism.get("threads_of_few", ()))
        values["parallelism"] = Parallelism(**parallelism)
        values["selection"] = from_json(SelectionOptions, values.get("selection", {}))
        values["forks"] = from_json(ForkOptions, values.get("forks", {}))
        values["knobs"] = from_json(KnobOptions, values.get("knobs", {}))
        return cls(**values)
