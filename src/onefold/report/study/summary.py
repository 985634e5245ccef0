"""Everything a report shows, worked out once: the text, the JSON and the page only write it down."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onefold.serving.ranked_trials import Servings, surface_costs
from onefold.serving.recommendation import Recommendation, recommend
from onefold.store import StudyRecord
from onefold.vocabulary import quantities
from onefold.vocabulary.costs import total_cost
from onefold.vocabulary.knobs import KnobRecord
from onefold.vocabulary.objective import Goal, Objective
from onefold.vocabulary.ranking import front, is_feasible, is_rated, leaderboard, settled
from onefold.vocabulary.records import (
    Config,
    Epoch,
    Failure,
    Grant,
    Measurement,
    Metrics,
    Refusal,
    Rung,
    RungState,
    Trial,
    TrialState,
    Value,
)
from onefold.vocabulary.serving import SERVING_METRICS
from onefold.vocabulary.space import Choice, Float, Parameter, Space


@dataclass(frozen=True, slots=True)
class Failed:
    """A rung that failed, and why."""

    rung: Rung
    failure: Failure
    config: Config


@dataclass(frozen=True, slots=True)
class Level:
    """All rungs of one level: how many trials came, how they fared, and how many went on."""

    grant: Grant
    trials: int
    done: int
    failed: int
    promoted: int
    best: float | None  # of the first goal, among the results that keep the requirements

    @property
    def running(self) -> int:
        """How many have no result yet."""
        return self.trials - self.done - self.failed


@dataclass(frozen=True, slots=True)
class Moment:
    """A finished rung in time. `best` is the first goal's value of the best trial at that time, if one counts."""

    time_s: float
    trial: int
    level: int
    value: float
    keeps: bool  # the requirements
    best: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over the epochs of one trial, as (epoch, value). Where a rung starts afresh the epochs start again."""

    trial: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A study and all that can be said about it. Trials are named by their number everywhere."""

    study: StudyRecord
    objective: Objective
    parameters: Mapping[str, Parameter]  # in the order of the space
    groups: Mapping[str, str]  # of the parameters
    trials: tuple[Trial, ...]
    epochs: tuple[Epoch, ...]
    ranking: tuple[Trial, ...]  # those with a result, best first
    front: tuple[Trial, ...]  # with several goals: the trials that no other beats; else empty
    counts: Mapping[TrialState, int]  # states that occur, in the order of TrialState
    failures: tuple[Failed, ...]
    refusals: tuple[Refusal, ...]
    levels: tuple[Level, ...]  # lowest first
    cost: Measurement  # of all rungs together
    progress: tuple[Moment, ...]  # by time
    curve_metric: str  # what the learning curves show; "" without epochs
    curves: tuple[Curve, ...]  # by trial
    metrics: tuple[str, ...]  # reported by finished rungs: those of the objective first
    decimals: Mapping[str, int | None]  # that let a metric's values line up
    servings: Servings = field(default_factory=dict)  # what serving costs, by trial and device; empty: not looked at
    devices: tuple[str, ...] = ()  # of the servings; metrics that name no device are of the first one
    labels: Mapping[str, str] = field(default_factory=dict)  # of serving metrics that are not measured on the device
    recommendation: Recommendation | None = None
    steered: tuple[KnobRecord, ...] = ()  # what turning knobs came to, by trial and epoch

    @property
    def best(self) -> Trial | None:
        """The first of the ranking."""
        return self.ranking[0] if self.ranking else None

    @property
    def workload(self) -> str:
        """The workload's name."""
        return str(self.study.spec.get("workload") or self.study.name)

    @property
    def goal_metric(self) -> str:
        """The metric of the first goal: what the plots show."""
        return self.objective.goals[0].metric

    @property
    def test(self) -> Metrics:
        """What the handed-over model reached on the test data, where it is the best trial's; otherwise empty."""
        result = self.study.result
        found = result.get("test") if self.best is not None and result.get("trial") == self.best.number else None
        return {str(name): float(value) for name, value in (found or {}).items()}

    def epochs_of(self, trial: Trial) -> int:
        """How many epochs a trial has been trained."""
        seen = max((epoch.number for epoch in self.epochs if epoch.trial == trial.number), default=0)
        return seen or (trial.finished_rungs[-1].grant.epochs if trial.finished_rungs else 0)

    def keeps(self, trial: Trial) -> bool:
        """Whether a trial's result keeps the requirements."""
        return is_feasible(trial.metrics, self.objective)

    def written(self, metric: str, value: float) -> str:
        """A metric's value in words, the same in every form.

        "≈" marks an estimate: an energy that a model gave, and a cost of serving that was not measured on the device.
        """
        base = metric.partition("@")[0] if self.servings else metric
        if self.servings and base in SERVING_METRICS:
            estimate = metric in self.labels
        else:
            estimate = metric.endswith("_j") and self.cost.energy.source == "modelled"
        if base == "throughput_per_s" and self.servings:  # per second, not seconds
            written = f"{quantities.number(value)}/s"
        else:
            written = quantities.metric(base, value, self.decimals.get(metric))
        return f"≈ {written}" if estimate else written


def summarize(
    study: StudyRecord,
    trials: Sequence[Trial],
    epochs: Sequence[Epoch],
    *,
    servings: Servings | None = None,
    devices: Sequence[str] = (),
    quality: Goal | None = None,
    epoch_objective: Objective | None = None,
    steered: Sequence[KnobRecord] = (),
) -> Summary:
    """The summary of a study at any moment of its life, also before its first result.

    With `servings` it also says how to serve. `devices` are their names, the first one first (else in the order of the
    servings); `quality` is the workload's own goal (else what the objective lets suppose); `epoch_objective` ranks
    the epochs of trials that have not finished a rung.
    """
    objective = settled(_objective(study.spec, trials), trials)
    servings = servings or {}
    names = tuple(devices) or tuple(dict.fromkeys(device for _, device in servings))
    space = Space.from_json(study.spec.get("space") or {})
    results = [rung for trial in trials for rung in trial.finished_rungs]
    curve_metric = _curve_metric(objective, epochs)
    metrics = tuple(dict.fromkeys(name for name in objective.metrics if any(name in r.metrics for r in results)))
    metrics += tuple(sorted({name for rung in results for name in rung.metrics} - set(metrics)))
    states = Counter(trial.state for trial in trials)

    def is_servable(trial: Trial) -> bool:
        return trial.failure is None or not servings or all((trial.number, name) in servings for name in names)

    return Summary(
        study=study,
        objective=objective,
        parameters={**space.parameters, **_unlisted(space, trials)},
        groups={name: space.group_of(name) for name in space},
        trials=tuple(trials),
        epochs=tuple(epochs),
        ranking=tuple(leaderboard(trials, epochs, objective, epoch_objective, is_servable=is_servable)),
        front=tuple(front(trials, objective)) if len(objective.goals) > 1 else (),
        counts={state: states[state] for state in TrialState if states[state]},
        failures=tuple(
            Failed(rung, rung.failure, trial.config) for trial in trials for rung in trial.rungs if rung.failure
        ),
        refusals=tuple(refusal for trial in trials for refusal in trial.refusals),
        levels=_levels(objective, trials),
        cost=total_cost(trials, epochs),
        progress=_progress(objective, trials),
        curve_metric=curve_metric,
        curves=_curves(curve_metric, epochs),
        metrics=metrics,
        decimals={
            name: quantities.decimals(rung.metrics[name] for rung in results if name in rung.metrics)
            for name in metrics
        },
        servings=servings,
        devices=names if servings else (),
        labels=_labels(servings, names),
        recommendation=(
            recommend(trials, objective, servings, names, quality or _quality(objective, trials)) if servings else None
        ),
        steered=tuple(steered),
    )


def _quality(objective: Objective, trials: Iterable[Trial]) -> Goal:
    """What the workload itself is after, where nobody says so: what the objective wants or requires besides costs."""
    costs = {*SERVING_METRICS, "train_time_s", "energy_j", "memory_bytes", "parameters"}
    for goal in objective.goals:
        if goal.metric.partition("@")[0] not in costs:
            return goal
    for metric, bound in objective.require.items():
        if metric.partition("@")[0] not in costs:
            return Goal(metric, bound.at_least)
    return _objective({}, trials).goals[0]


def _labels(servings: Servings, devices: Sequence[str]) -> dict[str, str]:
    """How the serving metrics were obtained, where that is not by measuring; several ways are all named."""
    found: dict[str, set[str]] = {}
    for (_, device), surface in servings.items():
        for metric, label in surface_costs(surface)[1].items():
            found.setdefault(f"{metric}@{device}", set()).add(label)
            if device == devices[0]:
                found.setdefault(metric, set()).add(label)
    return {metric: ", ".join(sorted(labels)) for metric, labels in found.items()}


def _objective(spec: Mapping[str, Any], trials: Iterable[Trial]) -> Objective:
    """The study's objective, or what a result without one most likely means."""
    if spec.get("objective"):
        return Objective.from_json(spec["objective"])
    reported = {name for trial in trials for name in trial.metrics}
    if "loss" in reported and "accuracy" not in reported:
        return Objective(minimize="loss")
    return Objective(maximize="accuracy")


def _unlisted(space: Space, trials: Iterable[Trial]) -> dict[str, Parameter]:
    """Parameters that configurations have and the space does not, as wide as their values."""
    values: dict[str, list[Value]] = {}
    for trial in trials:
        for name in trial.config:
            if name not in space.parameters:
                values.setdefault(name, []).append(trial.config[name])
    return {name: _spanning(given) for name, given in values.items()}


def _spanning(values: Sequence[Value]) -> Parameter:
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) == len(values):
        return Float(min(numbers), max(numbers))
    return Choice(*dict.fromkeys(values))


def _levels(objective: Objective, trials: Iterable[Trial]) -> tuple[Level, ...]:
    visits: dict[int, list[tuple[Rung, bool]]] = {}
    for trial in trials:
        for place, rung in enumerate(trial.rungs):
            visits.setdefault(rung.grant.level, []).append((rung, place + 1 < len(trial.rungs)))
    return tuple(_level(objective, visits[level]) for level in sorted(visits))


def _level(objective: Objective, visits: Sequence[tuple[Rung, bool]]) -> Level:
    goal = objective.goals[0]
    kept = [
        rung.metrics[goal.metric]
        for rung, _ in visits
        if rung.state is RungState.DONE and is_feasible(rung.metrics, objective)
    ]
    return Level(
        grant=visits[-1][0].grant,
        trials=len(visits),
        done=sum(rung.state is RungState.DONE for rung, _ in visits),
        failed=sum(rung.state is RungState.FAILED for rung, _ in visits),
        promoted=sum(went_on for _, went_on in visits),
        best=min(kept, key=goal.loss, default=None),
    )


def _progress(objective: Objective, trials: Iterable[Trial]) -> tuple[Moment, ...]:
    """The finished rungs by time. What is best at each moment follows the ranking; with several goals, the first."""
    goal, several = objective.goals[0], len(objective.goals) > 1
    ended = [(rung.ended_s, rung) for trial in trials for rung in trial.rungs if rung.ended_s is not None]
    standing: dict[int, tuple[bool, int, float]] = {}  # of the trials that keep the requirements: failed, -level, loss
    moments = []
    for time_s, rung in sorted(ended, key=lambda pair: (pair[0], pair[1].decision)):
        if rung.state is RungState.FAILED and rung.trial in standing:
            standing[rung.trial] = (True, *standing[rung.trial][1:])
        if rung.state is not RungState.DONE or not is_rated(rung.metrics, objective):
            continue
        value, counts = rung.metrics[goal.metric], is_feasible(rung.metrics, objective)
        standing.pop(rung.trial, None)
        if counts:
            standing[rung.trial] = (
                (False, 0, goal.loss(value)) if several else (False, -rung.grant.level, goal.loss(value))
            )
        best = goal.loss(min(standing.values())[2]) if standing else None
        moments.append(Moment(time_s, rung.trial, rung.grant.level, value, counts, best))
    return tuple(moments)


def _curve_metric(objective: Objective, epochs: Sequence[Epoch]) -> str:
    """The first goal where epochs report it, else the nearest thing to it."""
    reported: set[str] = {name for epoch in epochs for name in epoch.metrics}
    wanted = (*objective.metrics, "accuracy", "loss", "train_loss", *sorted(reported))
    return next((name for name in wanted if name in reported), "")


def _curves(metric: str, epochs: Iterable[Epoch]) -> tuple[Curve, ...]:
    points: dict[int, list[tuple[int, float]]] = {}
    for epoch in sorted(epochs, key=lambda epoch: (epoch.trial, epoch.rung, epoch.number)):
        if _finite(epoch.metrics, metric):
            points.setdefault(epoch.trial, []).append((epoch.number, epoch.metrics[metric]))
    return tuple(Curve(trial, tuple(points[trial])) for trial in sorted(points))


def _finite(metrics: Metrics, name: str) -> bool:
    return name in metrics and math.isfinite(metrics[name])
