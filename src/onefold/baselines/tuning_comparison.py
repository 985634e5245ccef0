"""`onefold.compare`: strategies of tuning at equal budget, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from onefold.baselines.tuning_strategies import STRATEGIES, TuningStrategy, strategy_named
from onefold.device import PRECISE, Device, open_session, quiet_host
from onefold.device.catalog import HOST
from onefold.device.host import find_device, host
from onefold.serving.export import samples_beside
from onefold.serving.options import ServingOptions
from onefold.store.home import Home, check_name, free_name
from onefold.study import ParallelismOptions, Result, SearchOptions, Study
from onefold.study.api import single_trial
from onefold.study.events import StudyEvent
from onefold.study.tunable import Tunable, WorkloadLike
from onefold.vocabulary.argument_checks import suggest_keywords
from onefold.vocabulary.budget import Budget
from onefold.vocabulary.errors import InputError
from onefold.vocabulary.guarded_callback import GuardedCallback
from onefold.vocabulary.knobs import KnobOptions
from onefold.vocabulary.objective import Objective
from onefold.vocabulary.ratios import SERVED_SAMPLES
from onefold.vocabulary.records import Config, Metrics
from onefold.vocabulary.serving import OptimizeFor, Served, ServingPoint

ROUNDS = 3  # in which the chosen models are served in turn
TUNING_S, TUNING_J = "tuning_s", "tuning_j"
SERVED = ("latency_s", "throughput_per_s", "energy_per_sample_j")


@dataclass(frozen=True)
class StrategyEvent:
    """An event of a study that a strategy runs."""

    strategy: str
    seed: int
    event: StudyEvent


OnStrategyEvent = Callable[[StrategyEvent], None]


@dataclass(frozen=True)
class StrategyRun:
    """What one run of a strategy cost, and the model that it chose.

    Attributes:
        strategy: Its name.
        seed: The seed of its study.
        config: The configuration that it chose.
        metrics: The metrics of the model, on test data if there are any; what tuning took, `tuning_s` and `tuning_j`;
            what the model costs to serve at the points of the strategy; and the objective of the comparison.
        energy_source: Where the joules of tuning come from.
        folder: The folder of its study.
    """

    strategy: str
    seed: int
    config: Config
    metrics: Metrics
    energy_source: str
    folder: Path


@dataclass(frozen=True)
class Comparison:
    """The runs of several strategies at equal budget.

    Attributes:
        objective: What the strategies that consider serving optimize, and all are judged by.
        device: Where the models are served.
        budget: The budget of every run.
        runs: The runs, by seed and then in the order of the strategies.
    """

    objective: Objective
    device: str
    budget: Budget
    runs: tuple[StrategyRun, ...]

    @property
    def strategies(self) -> tuple[str, ...]:
        """Return the names of the strategies, in order."""
        return tuple(dict.fromkeys(run.strategy for run in self.runs))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that every run has: those of the objective, of tuning and of serving, then the others."""
        common = [name for name in self.runs[0].metrics if all(name in run.metrics for run in self.runs)]
        first = [name for name in (*self.objective.metrics, TUNING_S, TUNING_J, *SERVED) if name in common]
        return tuple(dict.fromkeys([*first, *common]))

    def figure(self, strategy: str, metric: str) -> float:
        """Return the median of a metric over the seeds of a strategy."""
        return median(run.metrics[metric] for run in self.runs if run.strategy == strategy)

    def ratio(self, strategy: str, metric: str) -> float:
        """Return the median over the seeds of a metric relative to the first strategy with the same seed."""
        first = {run.seed: run.metrics[metric] for run in self.runs if run.strategy == self.strategies[0]}
        pairs = [(run.metrics[metric], first[run.seed]) for run in self.runs if run.strategy == strategy]
        return median(value / base if base else float("nan") for value, base in pairs)


@suggest_keywords
def compare(
    workload: WorkloadLike | Tunable,
    *,
    strategies: Sequence[str] = tuple(STRATEGIES),
    device: str | Device = HOST,
    objective: Objective | None = None,
    budget: Budget | None = None,
    serving: ServingOptions | None = None,
    parallelism: ParallelismOptions | None = None,
    seeds: Sequence[int] = (0,),
    name: str | None = None,
    home: str | Path | Home | None = None,
    on_event: OnStrategyEvent | None = None,
) -> Comparison:
    """Run strategies of tuning at equal budget, and serve the models that they choose in turn.

    Each run has a history of its own, so that no strategy profits from the measurements of another.

    Args:
        workload: A `Workload` instance or a reference such as "file.py:Class" or "digits".
        strategies: Names of strategies: onefold, hierarchical, accuracy-only.
        device: The device that the models are served on.
        objective: What onefold optimizes and all strategies are judged by; by default to minimize "time_ratio".
        budget: The budget of every run.
        serving: How serving points are searched, and the `served_samples` of ratios.
        parallelism: Where trials run and how many in parallel; by default measured.
        seeds: Every strategy runs once with each.
        name: The name of the folder in the home that has the studies.
        home: The folder of studies; by default $ONEFOLD_HOME or the user's data folder.
        on_event: Called with every `StrategyEvent`.

    Returns:
        The runs with their costs and their models.

    Raises:
        InputError: An argument is invalid.
        StudyFailed: No trial of a run gave a result.
    """
    chosen = [strategy_named(each) for each in strategies]
    if not chosen or len({each.name for each in chosen}) < len(chosen) or not seeds:
        raise InputError(f"give different strategies and at least one seed, got {list(strategies)} and {list(seeds)}")
    tunable = workload if isinstance(workload, Tunable) else Tunable(workload)
    if tunable.workload is None:
        raise InputError("a comparison needs a workload, whose models are served; got a function")
    main = home if isinstance(home, Home) else Home(home)
    target = device if isinstance(device, Device) else find_device(device, main.devices)
    here = host(main.devices)
    folder = main.path / "comparisons"
    taken = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    name = name or free_name(tunable.name, taken)
    check_name(name)
    if name in taken:
        raise InputError(f"the comparison {name!r} already exists in {folder}; choose another name")
    comparison = _Comparison(
        tunable,
        target,
        here,
        objective or Objective(minimize="time_ratio"),
        budget or Budget(),
        serving or ServingOptions(),
        parallelism,
        main,
        folder / name,
        GuardedCallback(on_event),
    )
    return comparison.run(chosen, seeds)


@dataclass(frozen=True)
class _Tuned:
    strategy: TuningStrategy
    seed: int
    result: Result
    tuning_s: float
    tuning_j: float | None
    energy_source: str
    served_samples: float | None

    @property
    def model(self) -> Path:
        return self.result.folder / "best" / "model.onnx"


@dataclass(frozen=True)
class _Comparison:
    tunable: Tunable
    device: Device
    host: Device
    objective: Objective
    budget: Budget
    serving: ServingOptions
    parallelism: ParallelismOptions | None
    home: Home
    folder: Path
    on_event: OnStrategyEvent

    def run(self, strategies: Sequence[TuningStrategy], seeds: Sequence[int]) -> Comparison:
        runs: list[StrategyRun] = []
        for seed in seeds:
            tuned = [self._tune(strategy, seed) for strategy in strategies]
            runs += self._judged(tuned)
        return Comparison(self.objective, self.device.name, self.budget, tuple(runs))

    def _tune(self, strategy: TuningStrategy, seed: int) -> _Tuned:
        home = self._own_home(f"{strategy.name}-{seed}")

        def on_event(event: StudyEvent) -> None:
            self.on_event(StrategyEvent(strategy.name, seed, event))

        objective = self.objective if strategy.considers_serving else self.tunable.objective
        study = Study(
            self.tunable,
            device=self.device,
            objective=objective,
            budget=self.budget,
            search=SearchOptions("tpe"),
            serving=replace(self.serving, measure="trials" if strategy.considers_serving else "winner"),
            knobs=KnobOptions("on" if strategy.tunes_knobs else "off"),
            parallelism=self.parallelism,
            seed=seed,
            name="study",
            home=home,
            on_event=on_event,
        )
        result = study.run()
        seconds, joules = result.elapsed_s, result.cost.energy.joules
        if strategy.tunes_serving:
            seconds += sum(surface.measured_s for surface in result.surfaces.values())
        if strategy.tunes_winner:
            again = single_trial(
                self.tunable,
                result.config,
                epochs=self.budget.max_epochs,
                knobs=KnobOptions("probe"),
                accelerator=self.parallelism.accelerator if self.parallelism is not None else "cpu",
                seed=seed,
                name="knobs",
                home=home,
                on_event=on_event,
            ).run()
            seconds += again.elapsed_s
            more = again.cost.energy.joules
            joules = None if joules is None or more is None else joules + more
        source = result.cost.energy.source
        return _Tuned(strategy, seed, result, seconds, joules, source, study.spec.serving.served_samples)

    def _own_home(self, name: str) -> Home:
        path = self.folder / name
        home = Home(path, store_url=f"sqlite:///{path.absolute() / 'store.db'}")
        for source in (self.home.devices, self.home.pairings):
            if source.is_dir():
                shutil.copytree(source, home.path / source.relative_to(self.home.path))
        return home

    def _judged(self, tuned: Sequence[_Tuned]) -> list[StrategyRun]:
        """Serve the chosen models in turn, and return the runs with all their figures."""
        samples = next((each.served_samples for each in tuned if each.served_samples), self.serving.served_samples)
        served = self._serve_in_turn(tuned)
        own = self.tunable.objective.goals[0]
        objective = self.objective.with_ratios_over(own.metric, maximize=own.maximize)
        runs = []
        for each in tuned:
            learned = {**each.result.metrics, **each.result.test}
            metrics = {**learned, **served[each.strategy.name], TUNING_S: each.tuning_s}
            metrics |= {TUNING_J: each.tuning_j} if each.tuning_j is not None else {}
            metrics |= {SERVED_SAMPLES: samples} if samples else {}
            for computed in set(objective.metrics) - set(objective.inputs):
                metrics.pop(computed, None)
            completed = objective.completed(metrics)
            config = each.result.config
            runs.append(
                StrategyRun(each.strategy.name, each.seed, config, completed, each.energy_source, each.result.folder)
            )
        return runs

    def _serve_in_turn(self, tuned: Sequence[_Tuned]) -> dict[str, Metrics]:
        measured: dict[tuple[str, OptimizeFor], list[Served]] = {}
        with ExitStack() as stack:
            session = stack.enter_context(open_session(self.device, self.host, pairings=self.home.pairings))
            points = {each.strategy.name: self._points(each, session.threads) for each in tuned}
            for each in tuned:
                samples = samples_beside(each.model)
                session.prepare(each.model, samples if samples.is_file() else None, [])
            stack.enter_context(quiet_host(session, self.home.locks.measurement))
            for _ in range(ROUNDS):
                for each in tuned:
                    for goal, point in points[each.strategy.name].items():
                        served = session.serve(each.model, point, PRECISE)
                        measured.setdefault((each.strategy.name, goal), []).append(served)
        return {each.strategy.name: _served_metrics(each.strategy.name, measured) for each in tuned}

    def _points(self, tuned: _Tuned, threads: int) -> dict[OptimizeFor, ServingPoint]:
        if not tuned.strategy.tunes_serving:
            return dict.fromkeys(OptimizeFor, ServingPoint(1, threads))
        surface = tuned.result.surfaces[self.device.name]
        measurable = [served for served in surface.served if served.point.threads <= threads]
        possible = replace(surface, served=tuple(measurable))
        return {goal: possible.best(goal).point for goal in OptimizeFor}


def _served_metrics(name: str, measured: dict[tuple[str, OptimizeFor], list[Served]]) -> Metrics:
    latency, throughput, energy = (measured[name, goal] for goal in OptimizeFor)
    joules = [served.energy_per_sample_j for served in energy]
    known = [value for value in joules if value is not None]
    return {
        "latency_s": median(served.latency_s for served in latency),
        "throughput_per_s": median(served.throughput_per_s for served in throughput),
        **({"energy_per_sample_j": median(known)} if known else {}),
    }
